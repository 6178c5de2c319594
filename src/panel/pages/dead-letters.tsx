import type { Context } from "hono";
import type { Child } from "hono/jsx";
import { refuse } from "../../core/errors.ts";
import { parseJson } from "../../core/payload.ts";
import { pageOfLetters } from "../../outbox/find.ts";
import { type Fields, refused, runFor } from "../act.tsx";
import { Act, Ask, asJson, Cut, Empty, Facts, Pager, Table, Time, Whole } from "../parts.tsx";
import { findLetter, pageOf, readPayloadStarts } from "../reads.ts";
import { type Content, canDo, type Env, type Visit } from "../visit.ts";
import { chosenTopic, TopicChoice } from "./topic-choice.tsx";

const hrefOf = (id: string) => `/panel/dead-letters/${encodeURIComponent(id)}`;

/** What is not tried again by itself, with its reason. */
export async function deadLettersPage(visit: Visit): Promise<Content> {
  const { db, now, url } = visit;
  const chosen = chosenTopic(visit);
  if (chosen === null) {
    return { title: "Dead letters", body: <Empty>No module has a topic. A module declares its topics in code.</Empty> };
  }
  const reason = url.searchParams.get("reason") || undefined;
  const page = await pageOfLetters(db, chosen.name, { ...pageOf(url), reason, bare: true });
  if (!page.ok) return refused(page, "/panel/dead-letters");
  const starts = await readPayloadStarts(
    db,
    page.letters.map(({ id }) => id),
  );
  const args = { module: chosen.module, topic: chosen.topic, ...(reason !== undefined && { reason }) };
  const all = new URLSearchParams({ args: JSON.stringify(args) });
  return {
    title: "Dead letters",
    body: (
      <>
        <TopicChoice visit={visit} chosen={chosen.name}>
          <label>
            Reason <input name="reason" value={reason ?? ""} autocomplete="off" maxlength={100} />
          </label>
        </TopicChoice>
        {page.letters.length === 0 ? (
          page.nextCursor === null ? (
            <Empty>
              {`${chosen.name} has no dead letters${reason === undefined ? "" : " of this reason"}. What fails too often, or is given up by its handler, comes here and waits for a person.`}
            </Empty>
          ) : (
            <Empty>None among the newest; go on with Next.</Empty>
          )
        ) : (
          <>
            {canDo(visit, "dead-letter.replay-all") ? (
              <div class="row">
                <a class="button" href={`/panel/dead-letters/replay-all?${all}`}>
                  {reason === undefined ? "Replay all…" : "Replay all of this reason…"}
                </a>
              </div>
            ) : null}
            <Table
              label={`Dead letters of ${chosen.name}`}
              head={["Died", "Reason", "Key", "Payload", "Last error", "Attempts", "Do"]}
              numbers={["Attempts"]}
            >
              {page.letters.map(({ id, k, reason: why, error, attempts, died_at }) => (
                <tr data-key={id}>
                  <th scope="row">
                    <a href={hrefOf(id)}>
                      <Time at={died_at} now={now} />
                    </a>
                  </th>
                  <td>
                    <Cut text={why} href={hrefOf(id)} />
                  </td>
                  <td>
                    <Cut text={k} href={hrefOf(id)} />
                  </td>
                  <td>
                    <Cut text={starts.get(id)?.start ?? null} href={hrefOf(id)} />
                  </td>
                  <td>
                    <Cut text={error} href={hrefOf(id)} />
                  </td>
                  <td class="number">{attempts}</td>
                  <td>
                    <Act visit={visit} command="dead-letter.replay" args={{ id }} label="Replay" about={id} />
                  </td>
                </tr>
              ))}
            </Table>
          </>
        )}
        <Pager url={url} next={page.nextCursor} />
      </>
    ),
  };
}

/** One dead letter, whole. */
export async function deadLetterPage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, now } = visit;
  const letter = await findLetter(db, c.req.param("id") ?? "");
  if (letter === null) {
    return refused(
      refuse("no_dead_letter", "id", "There is no such dead letter: it was replayed or discarded."),
      "/panel/dead-letters",
    );
  }
  const { id, topic, k, payload, reason, error } = letter;
  const json = parseJson(payload);
  const back = `/panel/dead-letters?of=${encodeURIComponent(topic)}`;
  return {
    title: "Dead letter",
    live: false,
    body: (
      <>
        <div class="row">
          <Act visit={visit} command="dead-letter.replay" args={{ id }} label="Replay" about={id} back={back} primary />
          <Ask visit={visit} command="dead-letter.discard" args={{ id }} label="Discard" about={id} back={back} />
        </div>
        <Facts
          rows={[
            ["Id", <code>{id}</code>],
            ["Topic", <a href={back}>{topic}</a>],
            ["Died", <Time at={letter.died_at} now={now} />],
            ["Born", <Time at={letter.born_at} now={now} />],
            ["Attempts", String(letter.attempts)],
            ["Deliveries", String(letter.deliveries)],
            ["Key", <Whole label="Key" text={k ?? "none"} />],
            ["Reason", <Whole label="Reason" text={reason} />],
          ]}
        />
        <h2>Payload</h2>
        <Whole label="Payload" text={json.ok ? asJson(json.value) : payload} />
        <h2>Last error</h2>
        <Whole label="Last error" text={error} />
      </>
    ),
  };
}

const COMMAND = "dead-letter.replay-all";

/** Of a topic's dead letters, which: as the list's page says it, and as each part passes it on. */
function argumentsOf(fields: Fields): { module: string; topic: string; reason?: string } | null {
  const json = parseJson(typeof fields.args === "string" ? fields.args : "");
  const { module, topic, reason } = (
    json.ok && typeof json.value === "object" && json.value !== null ? json.value : {}
  ) as Fields;
  if (typeof module !== "string" || typeof topic !== "string") return null;
  return { module, topic, ...(typeof reason === "string" && reason !== "" && { reason }) };
}

/** Says what replaying all will do, and asks for it. */
export async function replayAllPage(visit: Visit): Promise<Content> {
  const args = argumentsOf({ args: visit.url.searchParams.get("args") });
  if (args === null) return refused(refuse("bad_arguments", "args", "Choose a topic first."), "/panel/dead-letters");
  const name = `${args.module}.${args.topic}`;
  const { db } = visit;
  const counted = await db
    .prepare("SELECT count(*) AS n FROM (SELECT 1 FROM dead_letters WHERE topic = ?1 LIMIT ?2)")
    .bind(name, COUNT_MOST + 1)
    .first<{ n: number }>();
  const n = counted?.n ?? 0;
  const many = n > COUNT_MOST ? `more than ${COUNT_MOST.toLocaleString("en")}` : n.toLocaleString("en");
  const which = args.reason === undefined ? "all of them" : `those whose reason is ${args.reason}`;
  return {
    title: "Replay all",
    live: false,
    body: (
      <Part visit={visit} args={args} done={0} kept={0} total={Math.min(n, COUNT_MOST)} cursor={null}>
        <p class="says">
          {`${name} has ${many} dead letters. Replaying puts back ${which} as new items, the newest first, 200 at a time; they run again at once. What cannot be put back stays dead.`}
        </p>
      </Part>
    ),
  };
}

/** Dead letters that are counted for the bar at most. */
const COUNT_MOST = 10_000;

interface PartProps {
  visit: Visit;
  args: { module: string; topic: string; reason?: string };
  done: number;
  kept: number;
  total: number;
  cursor: string | null;
  /** Goes on by itself, where there is script. */
  going?: boolean;
  children?: Child;
}

/** The form of one part: it carries how far it has come. */
function Part({ visit, args, done, kept, total, cursor, going = false, children }: PartProps) {
  const back = `/panel/dead-letters?of=${encodeURIComponent(`${args.module}.${args.topic}`)}`;
  return (
    <form method="post" action="/panel/dead-letters/replay-all" class="stack" data-going={going ? "yes" : undefined}>
      {children}
      {going ? <Progress done={done} kept={kept} total={total} /> : null}
      <input type="hidden" name="csrf" value={visit.csrf} />
      <input type="hidden" name="args" value={JSON.stringify(args)} />
      <input type="hidden" name="done" value={String(done)} />
      <input type="hidden" name="kept" value={String(kept)} />
      <input type="hidden" name="total" value={String(total)} />
      {cursor === null ? null : <input type="hidden" name="cursor" value={cursor} />}
      <div class="row">
        <button type="submit" class="danger">
          {going ? "Go on" : "Replay all"}
        </button>
        <a href={back}>{going ? "Stop here" : "Leave it"}</a>
      </div>
    </form>
  );
}

function Progress({ done, kept, total }: { done: number; kept: number; total: number }) {
  return (
    <p role="status">
      <progress max={Math.max(1, total, done)} value={done} aria-label="Dead letters replayed" />
      {` ${done.toLocaleString("en")} replayed${kept === 0 ? "" : `, ${kept.toLocaleString("en")} kept`}`}
    </p>
  );
}

/** Replays one part, and shows how far it has come. */
export async function replayPart(visit: Visit, _: Context<Env>, fields: Fields): Promise<Content> {
  const args = argumentsOf(fields);
  if (args === null) return refused(refuse("bad_arguments", "args", "Choose a topic first."), "/panel/dead-letters");
  const back = `/panel/dead-letters?of=${encodeURIComponent(`${args.module}.${args.topic}`)}`;
  const cursor = typeof fields.cursor === "string" ? { cursor: fields.cursor } : {};
  const answer = await runFor(visit, COMMAND, { ...args, ...cursor });
  if (!answer.ok) return refused(answer, back);
  const result = answer.result as { replayed: number; kept: number; nextCursor: string | null };
  const done = whole(fields.done) + result.replayed;
  const kept = whole(fields.kept) + result.kept;
  const total = whole(fields.total);
  return {
    title: "Replay all",
    live: false,
    body:
      result.nextCursor === null ? (
        <>
          <Progress done={done} kept={kept} total={done} />
          <p class="notice good">
            All that could be put back is back. What was kept is still in the list: another item has its key.
          </p>
          <p>
            <a href={back}>Back to the dead letters</a>
          </p>
        </>
      ) : (
        <Part visit={visit} args={args} done={done} kept={kept} total={total} cursor={result.nextCursor} going />
      ),
  };
}

const whole = (value: unknown): number => (typeof value === "string" && /^\d{1,9}$/.test(value) ? Number(value) : 0);
