import type { Context } from "hono";
import { nextFire } from "../../core/calendar.ts";
import { refuse } from "../../core/errors.ts";
import { isoInstant } from "../../core/time.ts";
import { readWhen } from "../../schedules/rows.ts";
import { localTime, readScheduleViews, type ScheduleView } from "../../schedules/views.ts";
import { type Fields, refused, runFor } from "../act.tsx";
import { leaveNotice } from "../notices.ts";
import { Act, Ask, asJson, Cut, Empty, Facts, Pager, State, Table, Time, Whole } from "../parts.tsx";
import { pageOf, pageOfFirings } from "../reads.ts";
import { type Content, canDo, type Env, type Visit } from "../visit.ts";
import { List, Standing } from "./schedule-list.tsx";
import { AddForm, type Draft, draftOf, Fires, grantsOf } from "./schedule-form.tsx";

/** Both kinds: the jobs of the code, and the rows that people have added. */
export async function schedulesPage(visit: Visit): Promise<Content> {
  return listPage(visit, draftOf({}), null);
}

async function listPage(visit: Visit, draft: Draft, problem: string | null): Promise<Content> {
  const { db, deps, now } = visit;
  const views = await readScheduleViews(db, deps.catalog, deps.jobs, now);
  const stored = views.filter(({ kind }) => kind === "stored");
  return {
    title: "Schedules",
    body: (
      <>
        <h2>Stored</h2>
        {stored.length === 0 ? (
          <Empty>
            Nobody has added a schedule. Add one below: it fires from the next tick on, with the grants you give it.
          </Empty>
        ) : (
          <List visit={visit} label="Stored schedules" views={stored} />
        )}
        <h2>Of the catalog</h2>
        {views.length === stored.length ? (
          <Empty>The catalog is empty. Jobs are declared in code.</Empty>
        ) : (
          <List visit={visit} label="Jobs of the catalog" views={views.filter(({ kind }) => kind === "catalog")} />
        )}
        {canDo(visit, "schedule.add") ? (
          <AddForm visit={visit} draft={draft} problem={problem}>
            {await preview(visit, draft)}
          </AddForm>
        ) : null}
      </>
    ),
  };
}

/** One stored schedule: what it does, when, with whose grants, and what became of its firings. */
export async function schedulePage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, deps, now, url } = visit;
  const name = c.req.param("name") ?? "";
  const views = await readScheduleViews(db, deps.catalog, deps.jobs, now);
  const view = views.find((one) => one.kind === "stored" && one.name === name);
  const firings = await pageOfFirings(db, name, pageOf(url));
  if ("ok" in firings) return refused(firings, "/panel/schedules");
  if (view === undefined && firings.items.length === 0) {
    return refused(
      refuse("not_found", "name", "There is no such schedule, and none of that name ever fired."),
      "/panel/schedules",
    );
  }
  return {
    title: `Schedule ${name.slice(0, 100)}`,
    body: (
      <>
        {view === undefined ? <Empty>It was removed. Its firings are kept.</Empty> : <One visit={visit} view={view} />}
        <h2>Firings</h2>
        {firings.items.length === 0 ? (
          <Empty>It has not fired yet.</Empty>
        ) : (
          <Table
            label="Firings"
            head={["Slot", "Claimed", "Late", "Missed", "Outcome", "Detail", "By", "Cron", "Run"]}
            numbers={["Late", "Missed"]}
          >
            {firings.items.map((firing) => (
              <tr data-key={firing.id}>
                <th scope="row">
                  <Time at={firing.slot} now={now} />
                </th>
                <td>
                  <Time at={firing.claimed_at} now={now} />
                </td>
                <td class="number">{`${Math.max(0, Math.round((firing.claimed_at - firing.slot) / 1_000))} s`}</td>
                <td class="number">{firing.missed}</td>
                <td>
                  <Outcome outcome={firing.outcome} />
                </td>
                <td>
                  <Cut text={firing.detail} />
                </td>
                <td>
                  <Cut
                    text={
                      firing.refired_by === null ? firing.fired_by : `${firing.fired_by}, again ${firing.refired_by}`
                    }
                  />
                </td>
                <td>
                  <Cut text={firing.cron} /> <Cut text={firing.time_zone} />
                </td>
                <td>
                  {firing.run === null ? null : <a href={`/panel/runs/${encodeURIComponent(firing.run)}`}>run</a>}{" "}
                  {firing.thread === null ? null : (
                    <a href={`/panel/threads/${encodeURIComponent(firing.thread)}`}>thread</a>
                  )}
                </td>
              </tr>
            ))}
          </Table>
        )}
        <Pager url={url} next={firings.nextCursor} />
      </>
    ),
  };
}

function Outcome({ outcome }: { outcome: string }) {
  const tone = outcome === "admitted" ? "good" : outcome === "claimed" ? "bad" : "warn";
  return <State word={outcome === "claimed" ? "claimed, not started" : outcome.slice(0, 100)} tone={tone} />;
}

function One({ visit, view }: { visit: Visit; view: ScheduleView }) {
  const { now } = visit;
  const { name, enabled, state, lastFiring, standingThread } = view;
  const about = name.slice(0, 100);
  const thread = standingThread;
  return (
    <>
      <div class="row">
        <Act
          visit={visit}
          command="schedule.fire"
          args={{ name }}
          label="Fire now"
          about={about}
          primary={state === "claimed_not_started"}
        />
        <Act
          visit={visit}
          command={enabled ? "schedule.disable" : "schedule.enable"}
          args={{ name }}
          label={enabled ? "Disable" : "Enable"}
          about={about}
        />
        <Ask
          visit={visit}
          command="schedule.remove"
          args={{ name }}
          label="Remove"
          about={about}
          back="/panel/schedules"
        />
      </div>
      {view.problem === null ? null : <Whole label="Why it is invalid" text={view.problem} />}
      <Facts
        rows={[
          ["State", <Standing state={state} />],
          ["Cron", <Cut text={view.cron} />],
          ["Time zone", <Cut text={view.timeZone} />],
          ["Channel", <Cut text={view.channel} />],
          [
            "Thread",
            thread === null ? (
              "a new one for each firing"
            ) : (
              <a href={`/panel/threads/${encodeURIComponent(thread)}`}>standing</a>
            ),
          ],
          ["Added", <Time at={view.createdAt} now={now} />],
          ["By", <Cut text={view.createdBy} />],
          ["Run of the last firing", lastFiring?.runStatus ?? "–"],
        ]}
      />
      <h2>Text</h2>
      <Whole label="Text" text={view.text ?? ""} />
      <h2>Grants</h2>
      <Whole label="Grants" text={asJson(view.grants)} />
      <h2>Next fires</h2>
      <Fires fires={firesOf(view, now)} now={now} />
    </>
  );
}

/** The next five of a row, as far as it can be read. */
function firesOf({ cron, timeZone, enabled }: ScheduleView, now: number): { at: string; local: string }[] {
  const when = enabled ? readWhen(cron, timeZone, now) : null;
  if (when === null || !when.ok) return [];
  const fires: { at: string; local: string }[] = [];
  for (let at = nextFire(when.cron, now, when.zone); at !== null && fires.length < 5; ) {
    fires.push({ at: isoInstant(at), local: localTime(at, when.zone) });
    at = nextFire(when.cron, at, when.zone);
  }
  return fires;
}

/** Adds a schedule; what is refused comes back with what was typed. */
export async function addSchedule(visit: Visit, c: Context<Env>, fields: Fields): Promise<Content | Response> {
  const draft = draftOf(fields);
  const { name, cron, timeZone, text, channel, thread } = draft;
  const answer = await runFor(visit, "schedule.add", {
    name,
    cron,
    timeZone,
    text,
    channel,
    thread,
    grants: grantsOf(draft),
  });
  if (!answer.ok) {
    if (answer.code === "not_granted" && !canDo(visit, "schedule.add")) return refused(answer, "/panel/schedules");
    return { ...(await listPage(visit, draft, answer.message)), status: 400 };
  }
  const { nextLocal, wouldBe } = answer.result as {
    nextLocal: string | null;
    wouldBe: { outcome: string; detail: string };
  };
  const first = nextLocal === null ? "" : ` It fires first at ${nextLocal}.`;
  leaveNotice(c, {
    tone: wouldBe.outcome === "admitted" ? "good" : "bad",
    text: `${name} is added.${first} Now it would be ${wouldBe.outcome}: ${wouldBe.detail}`,
  });
  return c.redirect(`/panel/schedules/${encodeURIComponent(name)}`, 303);
}

/** What the form shows of a cron, for the script that asks while it is typed. */
export async function previewPart(visit: Visit, c: Context<Env>) {
  return preview(visit, draftOf({ cron: c.req.query("cron"), timeZone: c.req.query("timeZone") }));
}

async function preview(visit: Visit, { cron, timeZone }: Draft) {
  if (cron.trim() === "") return <p class="hint">The next five fires are shown here.</p>;
  const answer = await runFor(visit, "schedule.preview", { cron, timeZone, count: 5 });
  if (!answer.ok) return <p class="notice bad">{answer.message}</p>;
  const { fires } = answer.result as { fires: { at: string; local: string }[] };
  return <Fires fires={fires} now={visit.now} />;
}
