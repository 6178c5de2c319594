import type { Context } from "hono";
import { findRun, type RunRow } from "../../commands/runs.ts";
import { refuse } from "../../core/errors.ts";
import { parseJson } from "../../core/payload.ts";
import { refused } from "../act.tsx";
import { Ask, asJson, Cut, Empty, Facts, Pager, Table, Time, Whole } from "../parts.tsx";
import { pageOf, pageOfRuns } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";
import { Status } from "./workflows.tsx";

const hrefOf = (id: string) => `/panel/runs/${encodeURIComponent(id)}`;

/** Runs of dispatched commands, the newest first. */
export async function runsPage(visit: Visit): Promise<Content> {
  const { db, now, url } = visit;
  const page = await pageOfRuns(db, pageOf(url));
  if ("ok" in page) return refused(page, "/panel/runs");
  return {
    title: "Runs",
    body: (
      <>
        {page.items.length === 0 ? (
          <Empty>No run yet. A text that is sent in a thread, and a schedule that fires, start one.</Empty>
        ) : (
          <Table label="Runs" head={["Admitted", "Command", "Actor", "Status", "Result"]}>
            {page.items.map((run) => (
              <tr data-key={run.id}>
                <th scope="row">
                  <a href={hrefOf(run.id)}>
                    <Time at={run.admitted_at} now={now} />
                  </a>
                </th>
                <td>
                  <Cut text={run.command} href={hrefOf(run.id)} />
                </td>
                <td>
                  <Cut text={run.actor} href={hrefOf(run.id)} />
                </td>
                <td>
                  <Status status={run.status} />
                </td>
                <td>
                  <Cut text={run.error ?? run.result} href={hrefOf(run.id)} />
                </td>
              </tr>
            ))}
          </Table>
        )}
        <Pager url={url} next={page.nextCursor} />
      </>
    ),
  };
}

/** One run, whole. */
export async function runPage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, now } = visit;
  const run = await findRun(db, c.req.param("id") ?? "").first<RunRow>();
  if (run === null)
    return refused(refuse("not_found", "id", "There is no such run; old ones are deleted."), "/panel/runs");
  const { id, thread, result, error } = run;
  return {
    title: "Run",
    live: run.ended_at === null,
    body: (
      <>
        {run.status === "lost" ? (
          <p class="notice bad">
            Its instance is gone, and nobody knows what its command did. Look before you do it again.
          </p>
        ) : null}
        {run.ended_at === null ? (
          <div class="row">
            <Ask visit={visit} command="run.cancel" args={{ id }} label="Cancel" about={id} />
          </div>
        ) : null}
        <Facts
          rows={[
            ["Id", <code>{id}</code>],
            ["Status", <Status status={run.status} />],
            [
              "Thread",
              thread === null ? "none" : <a href={`/panel/threads/${encodeURIComponent(thread)}`}>its thread</a>,
            ],
            ["Admitted", <Time at={run.admitted_at} now={now} />],
            ["Started", <Time at={run.started_at} now={now} />],
            ["Ended", <Time at={run.ended_at} now={now} />],
            ["Actor", <Whole label="Actor" text={run.actor} />],
            ["Command", <Whole label="Command" text={run.command} />],
          ]}
        />
        <h2>Arguments</h2>
        <Whole label="Arguments" text={readable(run.args)} />
        <h2>Grants it was admitted with</h2>
        <Whole label="Grants" text={readable(run.grants)} />
        <h2>{error === null ? "Result" : "Error"}</h2>
        {error === null && result === null ? (
          <Empty>None yet.</Empty>
        ) : (
          <Whole label="Result" text={error ?? readable(result ?? "")} />
        )}
      </>
    ),
  };
}

/** Stored JSON so that it can be read; what is none, as it is. */
function readable(text: string): string {
  const json = parseJson(text);
  return json.ok ? asJson(json.value) : text;
}
