import type { Context } from "hono";
import * as v from "valibot";
import { findThread, type MessageRow, type ThreadRow } from "../../commands/threads.ts";
import { refuse } from "../../core/errors.ts";
import { parseJson } from "../../core/payload.ts";
import { refused } from "../act.tsx";
import { Act, Ask, Cut, Empty, Hidden, Pager, Table, Time, Whole } from "../parts.tsx";
import { pageOf, pageOfMessages, pageOfThreads, readRunStates } from "../reads.ts";
import { type Content, canDo, type Env, type Visit } from "../visit.ts";
import { Status } from "./workflows.tsx";

const hrefOf = (id: string) => `/panel/threads/${encodeURIComponent(id)}`;
/** Where a person writes by default; it exists once something is said in it. */
const OWN_CHANNEL = "inbox:panel";

/** Threads, the latest first, and a place to begin one. */
export async function threadsPage(visit: Visit): Promise<Content> {
  const { db, now, url } = visit;
  const page = await pageOfThreads(db, pageOf(url));
  if ("ok" in page) return refused(page, "/panel/threads");
  return {
    title: "Threads",
    body: (
      <>
        <p>
          <a href="/panel/runs">Runs of all threads</a>
        </p>
        {page.items.length === 0 ? (
          <Empty>No thread yet. A schedule opens one when it fires; or write what is to be run below.</Empty>
        ) : (
          <Table label="Threads" head={["Latest", "Title", "Channel", "Opened by"]}>
            {page.items.map(({ id, title, channel, opened_by, latest_at }) => (
              <tr data-key={id}>
                <td>
                  <Time at={latest_at} now={now} />
                </td>
                <th scope="row">
                  <a href={hrefOf(id)}>{title.slice(0, 120) || "without a title"}</a>
                </th>
                <td>
                  <Cut text={channel} href={hrefOf(id)} />
                </td>
                <td>
                  <Cut text={opened_by} href={hrefOf(id)} />
                </td>
              </tr>
            ))}
          </Table>
        )}
        <Pager url={url} next={page.nextCursor} />
        <Write visit={visit} thread={null} channel={OWN_CHANNEL} />
      </>
    ),
  };
}

/** One thread: what was said, what became of it, and a place to say more. */
export async function threadPage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, now, url } = visit;
  const id = c.req.param("id") ?? "";
  const thread = await findThread(db, { id }).first<ThreadRow>();
  if (thread === null)
    return refused(refuse("not_found", "id", "There is no such thread; old ones are deleted."), "/panel/threads");
  const page = await pageOfMessages(db, id, pageOf(url));
  if ("ok" in page) return refused(page, hrefOf(id));
  const messages = page.items.toReversed();
  const runs = messages.flatMap((message) => aboutOf(message).run ?? []);
  const states = await readRunStates(db, runs);
  return {
    title: thread.title.slice(0, 120) || "Thread",
    body: (
      <>
        <p>
          In <Cut text={thread.channel} />, opened by <Cut text={thread.opened_by} />{" "}
          <Time at={thread.opened_at} now={now} />
        </p>
        {thread.title.length > 120 ? <Whole label="Title" text={thread.title} /> : null}
        <nav class="pager" aria-label="Parts of the thread">
          {page.nextCursor === null ? null : (
            <a href={`${hrefOf(id)}?cursor=${encodeURIComponent(page.nextCursor)}`}>Earlier</a>
          )}
          {url.searchParams.has("cursor") ? <a href={hrefOf(id)}>Latest</a> : null}
        </nav>
        {messages.length === 0 ? <Empty>Nothing has been said here.</Empty> : null}
        <ol class="messages">
          {messages.map((message) => (
            <Message visit={visit} message={message} states={states} />
          ))}
        </ol>
        <Write visit={visit} thread={id} channel={thread.channel} />
      </>
    ),
  };
}

const aboutSchema = v.object({ run: v.optional(v.string()), command: v.optional(v.string()) });

function aboutOf({ data }: MessageRow): v.InferOutput<typeof aboutSchema> {
  const json = parseJson(data);
  const parsed = v.safeParse(aboutSchema, json.ok ? json.value : null);
  return parsed.success ? parsed.output : {};
}

/** A message that is longer than this scrolls, UTF-16 units. */
const LONG_CHARS = 2_000;

function Message({ visit, message, states }: { visit: Visit; message: MessageRow; states: Map<string, string> }) {
  const { id, at, author, kind, text } = message;
  const { run, command } = aboutOf(message);
  const state = run === undefined ? undefined : states.get(run);
  const live = state === "admitted" || state === "running";
  const offers = (kind === "offer" || kind === "refusal") && command !== undefined;
  return (
    <li class={`message ${kind}`} data-key={id}>
      <p class="by">
        <strong>
          <Cut text={author} />
        </strong>{" "}
        {kind} <Time at={at} now={visit.now} />
      </p>
      {text.length > LONG_CHARS ? <Whole label="Message" text={text} /> : <p class="said">{text}</p>}
      {run === undefined ? null : (
        <div class="row">
          <a href={`/panel/runs/${encodeURIComponent(run)}`}>The run</a>
          {state === undefined ? null : <Status status={state} />}
          {kind === "receipt" && live ? (
            <Ask visit={visit} command="run.cancel" args={{ id: run }} label="Cancel" about={run} />
          ) : null}
        </div>
      )}
      {offers ? (
        <Act visit={visit} command="run.as-me" args={{ message: id }} label="Run as me…" about={command} />
      ) : null}
    </li>
  );
}

/** Where a person writes a command's text. */
function Write({ visit, thread, channel }: { visit: Visit; thread: string | null; channel: string }) {
  if (!canDo(visit, "dispatch")) return null;
  const back = thread === null ? "/panel/threads" : hrefOf(thread);
  return (
    <form method="post" action="/panel/act/dispatch" class="stack write" data-still>
      <h2>{thread === null ? "Begin a thread" : "Write"}</h2>
      <Hidden visit={visit} args={thread === null ? {} : { thread, channel }} back={back} />
      {thread === null ? (
        <>
          <label for="channel">Channel</label>
          <input id="channel" name="text.channel" value={channel} required autocomplete="off" />
        </>
      ) : null}
      <label for="text">Text</label>
      <textarea id="text" name="text.text" rows={3} required aria-describedby="text-hint" />
      <p id="text-hint" class="hint">
        A command's words and its arguments, such as schedule list. It runs with your grants, and its result comes here.
      </p>
      <div class="row">
        <button type="submit" class="primary">
          Send
        </button>
      </div>
    </form>
  );
}
