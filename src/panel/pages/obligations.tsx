import * as v from "valibot";
import { obligationsPage, readObligationViews } from "../../api/jobs.ts";
import { Cut, Empty, Pager, Table, Time } from "../parts.tsx";
import { canDo, linkTo, type Visit } from "../visit.ts";

/** What a job owes, and what it holds in quarantine, which a person settles. */
export async function readObligations(visit: Visit, job: string) {
  const { url, db } = visit;
  const asked = {
    limit: "50",
    state: url.searchParams.get("state") ?? "quarantined",
    cursor: url.searchParams.get("cursor"),
  };
  const { cursor, ...rest } = asked;
  const parsed = v.safeParse(obligationsPage, cursor === null ? rest : { ...rest, cursor });
  const query = parsed.success ? parsed.output : { limit: 50, state: "quarantined" as const, cursor: undefined };
  return { query, ...(await readObligationViews(db, job, query)) };
}

type Read = Awaited<ReturnType<typeof readObligations>>;

export function Obligations({ visit, job, read }: { visit: Visit; job: string; read: Read }) {
  const { url, now } = visit;
  const { query, items, nextCursor } = read;
  const settles = query.state === "quarantined" && items.length > 0 && canDo(visit, "quarantine.settle");
  const list = (
    <Table
      label={query.state === "owed" ? "Owed" : "In quarantine"}
      head={[...(settles ? ["Choose"] : []), "Workspace", "Since", "Charges", "Version", "Last answer"]}
      numbers={["Charges", "Version"]}
    >
      {items.map(({ workspace, since, charges, version, error }) => (
        <tr data-key={workspace}>
          {settles ? (
            <td>
              <input
                type="checkbox"
                name="each.items"
                value={JSON.stringify({ workspace, version })}
                aria-label={`Choose ${workspace}`}
              />
            </td>
          ) : null}
          <th scope="row">{workspace}</th>
          <td>
            <Time at={since} now={now} />
          </td>
          <td class="number">{charges}</td>
          <td class="number">{version}</td>
          <td>
            <Cut text={error} />
          </td>
        </tr>
      ))}
    </Table>
  );
  return (
    <section aria-labelledby="obligations">
      <h3 id="obligations">{query.state === "owed" ? "Owed" : "Quarantine"}</h3>
      <nav class="tabs" aria-label="Which obligations">
        {(["quarantined", "owed"] as const).map((state) => (
          <a href={linkTo(url, { state, cursor: null })} aria-current={state === query.state ? "true" : undefined}>
            {state === "owed" ? "Owed" : "In quarantine"}
          </a>
        ))}
      </nav>
      {items.length === 0 ? (
        <Empty>
          {query.state === "owed"
            ? "Nothing is owed: all that was expired has been confirmed."
            : "Nothing is in quarantine. What the storefront does not confirm three times comes here, and waits for a person."}
        </Empty>
      ) : settles ? (
        <form method="post" action="/panel/ask/quarantine.settle">
          <input type="hidden" name="csrf" value={visit.csrf} />
          <input type="hidden" name="args" value={JSON.stringify({ job })} />
          <input type="hidden" name="back" value={`/panel/jobs/${job}?state=quarantined`} />
          {list}
          <div class="row">
            <button type="submit" class="danger">
              Settle the chosen…
            </button>
            <button type="submit" formaction="/panel/ask/quarantine.revalidate">
              Ask the storefront about the chosen…
            </button>
          </div>
        </form>
      ) : (
        list
      )}
      <Pager url={url} next={nextCursor} />
    </section>
  );
}
