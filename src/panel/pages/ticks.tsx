import type { Context } from "hono";
import { refuse } from "../../core/errors.ts";
import { listTicks, type ModuleReport, notReached, parseTick, type TickRow } from "../../tick/record.ts";
import { refused } from "../act.tsx";
import { Cut, Empty, Facts, Pager, State, Table, Time } from "../parts.tsx";
import { PAGE_ROWS, readTick } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";

/** What each tick did, and what it cost. */
export async function ticksPage({ db, url, now }: Visit): Promise<Content> {
  const cursor = url.searchParams.get("cursor");
  if (cursor !== null && !/^\d{1,15}$/.test(cursor)) {
    return refused(refuse("bad_arguments", "cursor", "not a cursor of this list"), "/panel/ticks");
  }
  const { results } = await listTicks(db, cursor === null ? null : Number(cursor), PAGE_ROWS + 1).all();
  const shown = results.slice(0, PAGE_ROWS);
  const ticks = shown.flatMap((row) => parseTick(row) ?? []);
  const next = results.length > PAGE_ROWS ? String(shown.at(-1)?.id) : null;
  return {
    title: "Ticks",
    body: (
      <>
        {ticks.length === 0 ? (
          <Empty>No tick has run yet. The cron trigger fires one a minute; locally npm run dev does.</Empty>
        ) : (
          <Table
            label="Ticks"
            head={[
              "At",
              "State",
              "ms",
              "Claimed",
              "Sent",
              "Drained",
              "Failed",
              "Statements",
              "Subrequests",
              "Warnings",
            ]}
            numbers={["ms", "Claimed", "Sent", "Drained", "Failed", "Statements", "Subrequests"]}
          >
            {ticks.map((tick) => {
              const { id, at, started_at, ended_at, report } = tick;
              const warnings = report.modules.filter(({ warning, error }) => warning !== null || error !== null);
              return (
                <tr data-key={`tick-${id}`}>
                  <th scope="row">
                    <a href={`/panel/ticks/${id}`}>
                      <Time at={at} now={now} />
                    </a>
                  </th>
                  <td>
                    <Fate tick={tick} now={now} />
                  </td>
                  <td class="number">{ended_at === null ? "–" : ended_at - started_at}</td>
                  <td class="number">{report.claimed}</td>
                  <td class="number">{report.sent}</td>
                  <td class="number">{report.drained}</td>
                  <td class="number">{report.failed}</td>
                  <td class="number">{report.queries}</td>
                  <td class="number">{report.subrequests}</td>
                  <td>
                    {warnings.length === 0 ? "–" : <Cut text={warnings.map(({ module }) => module).join(", ")} />}
                  </td>
                </tr>
              );
            })}
          </Table>
        )}
        <Pager url={url} next={next} />
      </>
    ),
  };
}

/** One tick: each module's share, what it was charged, what was measured. */
export async function tickPage({ db, now }: Visit, c: Context<Env>): Promise<Content> {
  const id = c.req.param("id") ?? "";
  const tick = /^\d{1,15}$/.test(id) ? await readTick(db, Number(id)) : null;
  if (tick === null)
    return refused(refuse("not_found", "id", "There is no such tick; they are kept for a week."), "/panel/ticks");
  const { report } = tick;
  const died = tick.ended_at === null && tick.wall_until <= now;
  return {
    title: `Tick ${id}`,
    live: tick.ended_at === null && !died,
    body: (
      <>
        {died ? (
          <p class="notice bad">
            {`It died in ${tick.running ?? "its opening"}; not reached: ${notReached(tick).join(", ") || "nothing more"}.`}
          </p>
        ) : null}
        <Facts
          rows={[
            ["State", <Fate tick={tick} now={now} />],
            ["At", <Time at={tick.at} now={now} />],
            ["Started", <Time at={tick.started_at} now={now} />],
            ["Ended", <Time at={tick.ended_at} now={now} />],
            ["Slots, firings", `${report.slots}, ${report.firings}`],
            ["Claimed, sent, drained", `${report.claimed}, ${report.sent}, ${report.drained}`],
            ["Parts that failed", String(report.failed)],
            ["D1 calls, statements", `${report.calls}, ${report.queries}`],
            ["Rows read, written", `${report.rowsRead}, ${report.rowsWritten}`],
            ["Subrequests", String(report.subrequests)],
            ["Refused by the queue", <Cut text={report.refused.join(", ")} />],
          ]}
        />
        <h2>Modules</h2>
        {report.modules.length === 0 ? (
          <Empty>No module has had its turn in this tick.</Empty>
        ) : (
          <Table
            label="Modules of the tick: subrequests and statements"
            head={["Module", "Share", "Charged", "Measured", "ms", "Drained", "Warning"]}
            numbers={["ms", "Drained"]}
          >
            {report.modules.map((module) => (
              <tr data-key={module.module}>
                <th scope="row">
                  <Cut text={module.module} />
                </th>
                <td>{module.bornEmpty ? "born empty" : amounts(module.share)}</td>
                <td>{amounts(module.charged)}</td>
                <td>{amounts(module.measured)}</td>
                <td class="number">{module.ms}</td>
                <td class="number">{module.drained}</td>
                <td>
                  <Cut text={warningOf(module)} />
                </td>
              </tr>
            ))}
          </Table>
        )}
      </>
    ),
  };
}

type Amounts = { subrequests: number | null; queries: number | null };
const amounts = ({ subrequests, queries }: Amounts) =>
  `${subrequests ?? "any number of"} subrequests, ${queries ?? "any number of"} statements`;

function warningOf({ warning, error }: ModuleReport): string | null {
  if (error !== null) return `it failed: ${error}`;
  if (warning === null) return null;
  const behind = warning.behind.length === 0 ? "" : `; behind it: ${warning.behind.join(", ")}`;
  return `${warning.reason}: ${warning.amount} ${warning.unit}${behind}`;
}

function Fate({ tick, now }: { tick: TickRow; now: number }) {
  if (tick.ended_at !== null) {
    return tick.report.failed > 0 ? <State word="parts failed" tone="warn" /> : <State word="closed" tone="good" />;
  }
  return tick.wall_until > now ? <State word="running" tone="plain" /> : <State word="died" tone="bad" />;
}
