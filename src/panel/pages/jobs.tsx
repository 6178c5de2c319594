import type { Context } from "hono";
import { readJobViews, readSettlementViews, readSlotViews } from "../../api/jobs.ts";
import { nextFire } from "../../core/calendar.ts";
import type { Job } from "../../jobs/catalog.ts";
import { LEDGER_BOUND } from "../../jobs/obligations.ts";
import { STALLED_ALERT, STOP_AFTER } from "../../jobs/slots.ts";
import { localTime } from "../../schedules/views.ts";
import { Act, Ask, Cut, Empty, Facts, State, stamp, Table, Time } from "../parts.tsx";
import { type Ledger, PAGE_ROWS, readLedgers, readStrips } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";
import { Obligations, readObligations } from "./obligations.tsx";
import { Slots, Strip, unknownJob } from "./slots.tsx";

type View = Awaited<ReturnType<typeof readJobViews>>[number];

/** Each job of the catalog: whether it is on, its latest slots, what it owes. */
export async function jobsPage(visit: Visit): Promise<Content> {
  const { db, deps, now } = visit;
  const ids = deps.catalog.map(({ id }) => id);
  const [views, strips, ledgers] = await Promise.all([
    readJobViews(db, deps.catalog, deps.selection, now),
    readStrips(db, ids),
    readLedgers(db, ids),
  ]);
  return {
    title: "Jobs",
    body: (
      <>
        {deps.selection.problems.map(({ setting, detail }) => (
          <p class="notice bad">{`${setting}: ${detail}`}</p>
        ))}
        {views.length === 0 ? (
          <Empty>The catalog is empty. Jobs are declared in code and given to createWorker.</Empty>
        ) : (
          views.map((view) => (
            <section class="card" data-key={view.id} aria-labelledby={`job-${view.id}`}>
              <h2 id={`job-${view.id}`}>
                <a href={`/panel/jobs/${view.id}`}>{view.id}</a>
              </h2>
              <Standing view={view} now={now} />
              <Strip job={view.id} rows={strips.filter(({ job }) => job === view.id)} />
              <Held ledger={ledgers.find(({ job }) => job === view.id)} />
              <Acts visit={visit} view={view} />
            </section>
          ))
        )}
      </>
    ),
  };
}

/** One job with its slots, its ledger and its quarantine. */
export async function jobPage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, deps, now, url } = visit;
  const job = deps.catalog.find(({ id }) => id === c.req.param("id"));
  if (job === undefined) return unknownJob();
  const cursor = url.searchParams.get("slots");
  const slotsFrom = cursor !== null && /^\d{1,15}$/.test(cursor) ? { cursor: Number(cursor) } : {};
  const [[view], [ledger], slots, strip, settlements, obligations] = await Promise.all([
    readJobViews(db, [job], deps.selection, now),
    readLedgers(db, [job.id]),
    readSlotViews(db, job.id, { limit: PAGE_ROWS, ...slotsFrom }),
    readStrips(db, [job.id]),
    readSettlementViews(db, job.id, { limit: PAGE_ROWS }),
    readObligations(visit, job.id),
  ]);
  if (view === undefined) return unknownJob();
  return {
    title: `Job ${job.id}`,
    body: (
      <>
        <Standing view={view} now={now} />
        <Acts visit={visit} view={view} />
        <h2>Next due</h2>
        <Due job={job} now={now} />
        <h2>Slots</h2>
        <Strip job={job.id} rows={strip} />
        <Slots visit={visit} job={job.id} slots={slots} />
        <h2>Ledger</h2>
        <Held ledger={ledger} />
        <Obligations visit={visit} job={job.id} read={obligations} />
        {settlements.items.length === 0 ? null : (
          <details>
            <summary>What people have settled</summary>
            <Table label="Settlements" head={["When", "Workspace", "How", "By", "Reason"]}>
              {settlements.items.map(({ settledAt, workspace, how, settledBy, reason }) => (
                <tr data-key={`${settledAt}-${workspace}`}>
                  <td>
                    <Time at={settledAt} now={now} />
                  </td>
                  <td>{workspace}</td>
                  <td>{how}</td>
                  <td>
                    <Cut text={settledBy} />
                  </td>
                  <td>
                    <Cut text={reason} />
                  </td>
                </tr>
              ))}
            </Table>
          </details>
        )}
      </>
    ),
  };
}

function Acts({ visit, view: { id, stopped, enabled } }: { visit: Visit; view: View }) {
  return (
    <div class="row">
      {stopped ? (
        <Act visit={visit} command="job.resume" args={{ id }} label="Resume" about={id} primary />
      ) : (
        <Ask visit={visit} command="job.stop" args={{ id }} label="Stop" about={id} />
      )}
      {enabled && !stopped ? <Act visit={visit} command="job.fire" args={{ id }} label="Fire now" about={id} /> : null}
    </div>
  );
}

function Standing({ view, now }: { view: View; now: number }) {
  const { enabled, processor, stopped, stopReason, failures, stalled, lastSlot, nextAt, cron, timeZone } = view;
  return (
    <Facts
      rows={[
        [
          "State",
          stopped ? (
            <>
              <State word="stopped" tone="bad" /> <Cut text={stopReason} />
            </>
          ) : enabled ? (
            <State word="on" tone="good" />
          ) : (
            <State word="off" tone="plain" />
          ),
        ],
        ["Cron", `${cron} (${timeZone})`],
        ["Worked by", processor ?? "nobody: put its id into ENABLED_JOBS"],
        ["Last slot", <Time at={lastSlot} now={now} />],
        ["Next due", enabled && !stopped ? <Time at={nextAt} now={now} /> : <span class="none">–</span>],
        ["Failures in a row", `${failures} of ${STOP_AFTER}, which stop it`],
        ...(stalled === 0 ? [] : [["Degraded without progress", `${stalled} of ${STALLED_ALERT}`] as const]),
      ]}
    />
  );
}

function Held({ ledger }: { ledger: Ledger | undefined }) {
  if (ledger === undefined || (ledger.held === 0 && ledger.openSince === null)) {
    return <p class="hint">It owes nothing.</p>;
  }
  const { owed, quarantined, held, openSince, job } = ledger;
  return (
    <p>
      {`${owed.toLocaleString("en")} owed, ${quarantined.toLocaleString("en")} in quarantine; room: `}
      <meter
        min={0}
        max={LEDGER_BOUND}
        high={0.8 * LEDGER_BOUND}
        optimum={0}
        value={held}
        aria-label={`Room taken in the ledger of ${job}`}
      />
      {` ${held.toLocaleString("en")} of ${LEDGER_BOUND.toLocaleString("en")}`}
      {openSince === null ? null : `; a batch is open since ${stamp(openSince)}`}
    </p>
  );
}

/** The next minutes of a job, in its zone and in UTC. */
function Due({ job, now }: { job: Job; now: number }) {
  const fires: number[] = [];
  for (let at = nextFire(job.cron, now, job.timeZone); at !== null && fires.length < 5; ) {
    fires.push(at);
    at = nextFire(job.cron, at, job.timeZone);
  }
  return (
    <ol class="fires">
      {fires.map((at) => (
        <li data-key={`fire-${at}`}>
          {job.timeZone === "UTC" ? null : `${localTime(at, job.timeZone)} · `}
          UTC <Time at={at} now={now} />
        </li>
      ))}
    </ol>
  );
}
