import { DEGRADED_MS } from "../../api/app.ts";
import type { Child } from "hono/jsx";
import { safeText } from "../../core/text.ts";
import { LEDGER_BOUND } from "../../jobs/obligations.ts";
import { readScheduleViews } from "../../schedules/views.ts";
import type { TickRow } from "../../tick/record.ts";
import { ago, Cut, Empty, lasting } from "../parts.tsx";
import { FILLING, readLedgers, readLostRuns, readStops } from "../reads.ts";
import { canRead, type Visit } from "../visit.ts";

/** What waits for a person. */

/** Of a stored name, a line shows this much, UTF-16 units. */
const NAME_CHARS = 100;

export interface Count {
  value: number;
  capped: boolean;
}
export const counted = ({ value, capped }: Count): string => `${value.toLocaleString("en")}${capped ? "+" : ""}`;

/** Something that waits for a person: how it is called, what it is, and where it is mended. */
export interface Need {
  key: string;
  what: string;
  detail: Child;
  href: string;
}

export async function needsOf(visit: Visit): Promise<Need[]> {
  const { db, deps, now } = visit;
  const ids = deps.catalog.map(({ id }) => id);
  const jobs = canRead(visit, "job:read");
  const [stops, ledgers, schedules, lost] = await Promise.all([
    jobs ? readStops(db, ids) : [],
    jobs ? readLedgers(db, ids) : [],
    canRead(visit, "schedule:read") ? readScheduleViews(db, deps.catalog, deps.jobs, now) : [],
    canRead(visit, "run:read") ? readLostRuns(db) : [],
  ]);
  return [
    ...stops.map(({ id, stop_reason, stopped_by, stopped_at }) => ({
      key: `stop-${id}`,
      what: `The job ${id} is stopped`,
      detail: (
        <>
          <Cut text={stop_reason} href={`/panel/jobs/${id}`} /> (by <Cut text={stopped_by} />, {ago(stopped_at, now)})
        </>
      ),
      href: `/panel/jobs/${id}`,
    })),
    ...ledgers.flatMap(({ job, quarantined, held }) => [
      ...(quarantined === 0
        ? []
        : [
            {
              key: `quarantine-${job}`,
              what: `${quarantined.toLocaleString("en")} in quarantine`,
              detail: `${job}: nothing asks about them again until a person settles them`,
              href: `/panel/jobs/${job}?state=quarantined`,
            },
          ]),
      ...(held < FILLING * LEDGER_BOUND
        ? []
        : [
            {
              key: `ledger-${job}`,
              what: `The ledger of ${job} is filling`,
              detail: `${held.toLocaleString("en")} of ${LEDGER_BOUND.toLocaleString("en")} are held; without room no batch begins`,
              href: `/panel/jobs/${job}`,
            },
          ]),
    ]),
    ...schedules.flatMap(({ kind, name, state, problem }) =>
      kind === "stored" && (state === "claimed_not_started" || state === "invalid")
        ? [
            {
              key: `schedule-${name}`,
              what:
                state === "invalid"
                  ? `The schedule ${safeText(name, NAME_CHARS)} is invalid`
                  : `${safeText(name, NAME_CHARS)} was claimed and never started`,
              detail:
                state === "invalid" ? <Cut text={problem} /> : "nothing retries it by itself: fire it, once, by hand",
              href: `/panel/schedules/${encodeURIComponent(name)}`,
            },
          ]
        : [],
    ),
    ...lost.map(({ id, command, ended_at }) => ({
      key: `run-${id}`,
      what: `A run of ${safeText(command, NAME_CHARS)} was lost`,
      detail: `its instance is gone, and nobody knows what it did${ended_at === null ? "" : ` (${ago(ended_at, now)})`}`,
      href: `/panel/runs/${encodeURIComponent(id)}`,
    })),
  ];
}

export function tickNeeds(ticks: readonly TickRow[], now: number): Need[] {
  const [latest] = ticks;
  const died = ticks.filter((tick) => isDead(tick, now));
  const late = latest !== undefined && now - latest.started_at > DEGRADED_MS;
  return [
    ...(late
      ? [
          {
            key: "tick",
            what: `No tick for ${lasting(now - latest.started_at)}`,
            detail: "nothing that waits for one moves: is the cron trigger there?",
            href: "/panel/ticks",
          },
        ]
      : []),
    ...(died.length === 0
      ? []
      : [
          {
            key: "died",
            what: died.length === 1 ? "A tick died" : `${died.length} ticks died`,
            detail: `of the latest ${ticks.length}; the last in ${safeText(died[0]?.running ?? "its opening", NAME_CHARS)}`,
            href: `/panel/ticks/${died[0]?.id}`,
          },
        ]),
  ];
}

export const isDead = ({ ended_at, wall_until }: TickRow, now: number) => ended_at === null && wall_until <= now;

export function letterNeeds(topics: readonly { key: string; dead: Count }[]): Need[] {
  return topics.flatMap(({ key, dead }) =>
    dead.value === 0
      ? []
      : [
          {
            key: `dead-${key}`,
            what: `${counted(dead)} dead letters of ${key}`,
            detail: "nothing tries them again until somebody replays them",
            href: `/panel/dead-letters?of=${key}`,
          },
        ],
  );
}

export function Needs({ needs }: { needs: readonly Need[] }) {
  return (
    <section aria-labelledby="needs">
      <h2 id="needs">Needs a person</h2>
      {needs.length === 0 ? (
        <Empty>Nothing. What fails too often, is stopped or is held stands here first.</Empty>
      ) : (
        <ul class="needs">
          {needs.map(({ key, what, detail, href }) => (
            <li data-key={key}>
              <a href={href}>{what}</a> <span>{detail}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
