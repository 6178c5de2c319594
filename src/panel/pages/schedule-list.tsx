import type { ScheduleState, ScheduleView } from "../../schedules/views.ts";
import { Act, Cut, State, Table, Time } from "../parts.tsx";
import type { Visit } from "../visit.ts";

const hrefOf = ({ kind, name }: Pick<ScheduleView, "kind" | "name">) =>
  kind === "catalog" ? `/panel/jobs/${encodeURIComponent(name)}` : `/panel/schedules/${encodeURIComponent(name)}`;

const STATES: Record<ScheduleState, readonly [word: string, tone: "good" | "warn" | "bad" | "plain"]> = {
  waiting: ["waiting", "good"],
  starting: ["starting", "plain"],
  claimed_not_started: ["claimed, not started", "bad"],
  refused: ["refused", "warn"],
  invalid: ["invalid", "bad"],
  disabled: ["disabled", "plain"],
};

/** How a schedule stands: a word, and whether a person is needed. */
export const Standing = ({ state }: { state: ScheduleState }) => {
  const [word, tone] = STATES[state];
  return <State word={word} tone={tone} />;
};

/** Schedules of one kind. */
export function List({ visit, label, views }: { visit: Visit; label: string; views: readonly ScheduleView[] }) {
  const { now } = visit;
  const head = ["Name", "State", "Cron", "Next, local time", "Next, UTC"];
  // A job's slots and its buttons are on its own page.
  const stored = views.some(({ kind }) => kind === "stored");
  return (
    <Table label={label} head={stored ? [...head, "Last firing", "Do"] : head}>
      {views.map((view) => {
        const { kind, name, state, cron, timeZone, nextAt, nextLocal, lastFiring } = view;
        return (
          <tr data-key={`${kind}-${name}`}>
            <th scope="row">
              <a href={hrefOf(view)}>{name.slice(0, 100)}</a>
            </th>
            <td>
              <Standing state={state} />
            </td>
            <td>
              <Cut text={cron} href={hrefOf(view)} /> <Cut text={timeZone} href={hrefOf(view)} />
            </td>
            <td class="nowrap">{nextLocal ?? <span class="none">–</span>}</td>
            <td>
              <Time at={nextAt} now={now} />
            </td>
            {stored ? (
              <>
                <td>
                  {lastFiring === null ? (
                    <span class="none">–</span>
                  ) : (
                    <>
                      <Time at={lastFiring.slot} now={now} /> <Cut text={lastFiring.outcome} href={hrefOf(view)} />
                    </>
                  )}
                </td>
                <td>
                  <Act visit={visit} command="schedule.fire" args={{ name }} label="Fire" about={name.slice(0, 100)} />
                </td>
              </>
            ) : null}
          </tr>
        );
      })}
    </Table>
  );
}
