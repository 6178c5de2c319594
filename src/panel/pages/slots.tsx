import type { Context } from "hono";
import { readSlotViews } from "../../api/jobs.ts";
import { refuse } from "../../core/errors.ts";
import { MINUTE } from "../../core/time.ts";
import { refused } from "../act.tsx";
import { asJson, Cut, Empty, Facts, State, stamp, Table, Time, Whole } from "../parts.tsx";
import type { StripRow } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";

export const unknownJob = () => refused(refuse("not_found", "id", "There is no such job."), "/panel/jobs");

const RESULTS: Record<string, readonly [letter: string, tone: "good" | "warn" | "bad" | "plain"]> = {
  succeeded: ["S", "good"],
  degraded: ["D", "warn"],
  failed: ["F", "bad"],
  unknown: ["?", "bad"],
};

/** The latest slots of a job in a row: a letter and a form for each result. */
export function Strip({ job, rows }: { job: string; rows: readonly StripRow[] }) {
  if (rows.length === 0) return <Empty>No slot yet. A job that is on gets one at each minute of its cron.</Empty>;
  return (
    <ol class="strip" aria-label={`Slots of ${job}, the oldest first`}>
      {rows.map(({ slot, result, missed }) => {
        const [letter, tone] = RESULTS[result ?? ""] ?? ["…", "plain"];
        const label = `${stamp(slot)}: ${result ?? "at work"}${missed === 0 ? "" : `, ${missed} missed`}`;
        return (
          <li data-key={`slot-${slot}`}>
            <a class={`slot ${tone}`} href={`/panel/jobs/${job}/slots/${slot}`} title={label} aria-label={label}>
              {letter}
            </a>
          </li>
        );
      })}
    </ol>
  );
}

function Result({ result }: { result: string | null }) {
  const [, tone] = RESULTS[result ?? ""] ?? ["…", "plain" as const];
  return <State word={result ?? "at work"} tone={tone} />;
}

type SlotPage = Awaited<ReturnType<typeof readSlotViews>>;

/** A page of slots. */
export function Slots({ visit, job, slots }: { visit: Visit; job: string; slots: SlotPage }) {
  const { now, url } = visit;
  if (slots.items.length === 0) return null;
  return (
    <details open={url.searchParams.has("slots")}>
      <summary>Slots as a table</summary>
      <Table
        label={`Slots of ${job}`}
        head={["Slot", "Result", "Missed", "Claimed", "Completed", "Detail"]}
        numbers={["Missed"]}
      >
        {slots.items.map(({ slot, result, missed, claimedAt, completedAt, detail }) => {
          const href = `/panel/jobs/${job}/slots/${Date.parse(slot)}`;
          return (
            <tr data-key={`row-${slot}`}>
              <th scope="row">
                <a href={href}>
                  <Time at={slot} now={now} />
                </a>
              </th>
              <td>
                <Result result={result} />
              </td>
              <td class="number">{missed}</td>
              <td>
                <Time at={claimedAt} now={now} />
              </td>
              <td>
                <Time at={completedAt} now={now} />
              </td>
              <td>
                <Cut text={JSON.stringify(detail)} href={href} />
              </td>
            </tr>
          );
        })}
      </Table>
      {slots.nextCursor === null ? null : (
        <nav class="pager" aria-label="Parts of the slots">
          <a href={`/panel/jobs/${job}?slots=${slots.nextCursor}`}>Older slots</a>
        </nav>
      )}
    </details>
  );
}

/** One slot, whole. */
export async function slotPage({ db, deps, now }: Visit, c: Context<Env>): Promise<Content> {
  const job = deps.catalog.find(({ id }) => id === c.req.param("id"));
  const slot = Number(c.req.param("slot"));
  if (job === undefined || !Number.isSafeInteger(slot) || slot % MINUTE !== 0) return unknownJob();
  const { items } = await readSlotViews(db, job.id, { limit: 1, cursor: slot + 1 });
  const [view] = items;
  if (view === undefined || Date.parse(view.slot) !== slot) {
    return refused(
      refuse("not_found", "slot", "There is no such slot; old ones are deleted."),
      `/panel/jobs/${job.id}`,
    );
  }
  const { result, generation, processor, missed, claimedAt, completedAt, instanceId, detail } = view;
  const workflow = job.processor?.kind === "workflow" ? job.processor.binding.toLowerCase().replaceAll("_", "-") : null;
  return {
    title: `Slot of ${job.id}`,
    body: (
      <>
        <Facts
          rows={[
            ["Slot", <Time at={view.slot} now={now} />],
            ["Result", <Result result={result} />],
            ["Generation", String(generation)],
            ["Worked by", processor],
            ["Missed before it", String(missed)],
            ["Claimed", <Time at={claimedAt} now={now} />],
            ["Completed", <Time at={completedAt} now={now} />],
            [
              "Instance",
              instanceId !== null && workflow !== null ? (
                <a href={`/panel/workflows/${workflow}/${encodeURIComponent(instanceId)}`}>{instanceId}</a>
              ) : (
                <Cut text={instanceId} />
              ),
            ],
          ]}
        />
        <h2>Detail</h2>
        <Whole label="Detail" text={asJson(detail)} />
        <p>
          <a href={`/panel/jobs/${job.id}`}>{`All of ${job.id}`}</a>
        </p>
      </>
    ),
  };
}
