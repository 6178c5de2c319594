import { safeText } from "../core/text.ts";
import type { Invocation } from "../outbox/runtime.ts";
import type { Actor } from "./actor.ts";
import { findByAddress, noteAddress } from "./channel-states.ts";
import type { Channels } from "./channels.ts";
import type { DispatchAnswer } from "./dispatch.ts";
import { findRun } from "./runs.ts";
import { findMessage, findThread, type NewMessage, openThreads, say, type ThreadRow } from "./threads.ts";

/** Longest title of a thread, UTF-16 units. */
const TITLE_CHARS = 120;

/** What somebody wrote in Slack. */
export interface SlackSaid {
  /** Of the event: the same one that comes twice is taken once. */
  messageId: string;
  user: string;
  text: string;
  /** The channel's id there, and the `ts` of the thread's first message. */
  place: { channel: string; ts: string };
  /** Opens a thread where there is none. */
  opens: boolean;
}

type DispatchSaid = (
  invocation: Invocation,
  actor: Actor,
  said: { text: string; channel: string; thread: string; messageId: string },
) => Promise<DispatchAnswer>;

/**
 * Takes what was written: finds its thread, or opens one, and dispatches the text as the person who wrote it. Whoever
 * is nobody here is told so, and nothing runs. A refusal that the dispatch itself leaves unsaid is said in the thread.
 * @param actor who wrote it; null = nobody
 */
export async function takeSaid(
  invocation: Invocation,
  channels: Channels,
  actor: Actor | null,
  said: SlackSaid,
  dispatch: DispatchSaid,
): Promise<void> {
  const { db, now } = invocation;
  const { messageId, user, text } = said;
  const textId = `text-${messageId}`;
  const external = `${said.place.channel}/${said.place.ts}`;
  const [known, before] = await db.batch([findThread(db, { external }), findMessage(db, textId)]);
  if (before !== undefined && before.results.length > 0) return;
  const [old] = (known as D1Result<ThreadRow>).results;
  if (old === undefined && !said.opens) return;
  const author = actor?.id ?? `slack:${user}`;
  const thread = old ?? (await openThread(invocation, said, author));

  const tell = async (code: string, message: string): Promise<void> => {
    const messages: NewMessage[] = [
      { id: textId, thread: thread.id, at: now, author, kind: "text", text, postedAt: now },
      {
        id: `refusal-${messageId}`,
        thread: thread.id,
        at: now + 1,
        author: "duework",
        kind: "refusal",
        text: `${code}: ${message}`,
        data: { code },
      },
    ];
    const leaving = [{ channel: thread.channel, message: `refusal-${messageId}` }];
    await channels.commit(invocation, say(db, messages), leaving);
  };
  if (actor === null) return tell("not_granted", "your Slack user is nobody here: a token's slackUser names him");
  const answer = await dispatch(invocation, actor, { text, channel: thread.channel, thread: thread.id, messageId });
  if (answer.ok) return;
  // Busy with the very run that this text became: the same event came twice at once.
  if (answer.code === "thread_busy" && (await findRun(db, `run-${messageId}`).first()) !== null) return;
  // What was decided is said already; what kept it from being decided, or from beginning, is not.
  if (answer.thread === undefined || answer.code === "thread_busy") await tell(answer.code, answer.message);
}

/** Opens a thread that began outside. Of two at once, both get the one. */
async function openThread({ db, now }: Invocation, said: SlackSaid, openedBy: string): Promise<ThreadRow> {
  const { channel: address, ts } = said.place;
  const known = await findByAddress(db, address).first<{ channel: string }>();
  const channel = known?.channel ?? `slack:${address.toLowerCase()}`;
  const external = `${address}/${ts}`;
  const title = safeText(said.text.split("\n")[0], TITLE_CHARS) || "a text";
  const id = `slack-${address}-${ts.replace(".", "-")}`;
  const [, , found] = await db.batch([
    noteAddress(db, channel, address, now),
    openThreads(db, [{ id, channel, title, openedBy, external }], now),
    findThread(db, { external }),
  ]);
  const [thread] = (found as D1Result<ThreadRow>).results;
  if (thread === undefined) throw new Error(`the thread ${id} was not opened`);
  return thread;
}
