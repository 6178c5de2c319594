import { needsFor } from "../../api/needs.ts";
import { safeText } from "../../core/text.ts";
import { mendingOf, type Need } from "../../tick/needs.ts";
import { ago, Empty } from "../parts.tsx";
import type { Visit } from "../visit.ts";

/** What waits for a person: the list of `src/tick/needs.ts`, each with where it is mended. */

/** Of a need's sentence, which may hold a stored name, a line shows this much, UTF-16 units. */
const LINE_CHARS = 200;

export async function needsOf({ runtime, deps, actor, now }: Visit): Promise<Need[]> {
  return (await needsFor(actor, runtime, deps.catalog, now)).needs;
}

function pageOf({ kind, subject, id, count }: Need): string {
  const one = (path: string) => (count.value === 1 && id !== "" ? `${path}/${encodeURIComponent(id)}` : path);
  switch (kind) {
    case "tick_late":
      return "/panel/ticks";
    case "tick_died":
      return `/panel/ticks/${id}`;
    case "job_stopped":
    case "ledger_filling":
      return `/panel/jobs/${encodeURIComponent(subject)}`;
    case "quarantine":
      return `/panel/jobs/${encodeURIComponent(subject)}?state=quarantined`;
    case "schedule_invalid":
    case "schedule_refused":
    case "not_started":
      return `/panel/schedules/${encodeURIComponent(subject)}`;
    case "run_lost":
      return one("/panel/runs");
    case "dead_letters":
      return `/panel/dead-letters?of=${encodeURIComponent(subject)}`;
  }
}

export function Needs({ needs, now }: { needs: readonly Need[]; now: number }) {
  return (
    <section aria-labelledby="needs">
      <h2 id="needs">Needs a person</h2>
      {needs.length === 0 ? (
        <Empty>Nothing. What fails too often, is stopped or is held stands here first.</Empty>
      ) : (
        <ul class="needs">
          {needs.map((need) => (
            <li data-key={`${need.kind} ${need.subject}`}>
              <a href={pageOf(need)}>{safeText(need.what, LINE_CHARS)}</a>
              <About need={need} now={now} />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function About({ need: { kind, detail, since }, now }: { need: Need; now: number }) {
  return (
    <>
      <span>{detail === "" ? ". " : `: ${safeText(detail.replace(/\.$/, ""), LINE_CHARS)}. `}</span>
      <span>{mendingOf(kind)}</span>
      {since === null || kind === "tick_late" ? null : <span class="ago">{ago(since, now)}</span>}
    </>
  );
}
