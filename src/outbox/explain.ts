import { splitTopicName } from "../core/names.ts";
import { isoInstant, MINUTE } from "../core/time.ts";
import type { FoundRow, Found, Going, LetterRow, Living } from "./find.ts";
import type { Runtime } from "./runtime.ts";
import { itemId, itemPlace } from "./seq.ts";
import { runningLeaseMs, type Topic } from "./topic.ts";

/** Without a tick for so long, what waits for one is told so, ms. */
const NO_TICK_MS = 3 * MINUTE;
const STATES: readonly Living[] = ["ready", "leased", "running"];

/** An item as every surface shows it: `explanation` says why it is not running, and what happens when. */
export interface ItemView {
  id: string;
  /** Finds it at once where a bare id must be looked for; null for a dead one, whose id always does. */
  place: string | null;
  module: string;
  topic: string;
  key: string | null;
  state: Living | "dead";
  dueAt: string | null;
  attempts: number;
  deliveries: number;
  leaseUntil: string | null;
  lastError: string | null;
  explanation: string;
}

/** @param going how the item's topic goes */
export function itemView(found: Found, going: Going, runtime: Runtime, now: number): ItemView {
  if ("letter" in found) return letterView(found.letter);
  const { row } = found;
  return {
    id: itemId(row.topic, row.seq),
    place: itemPlace(row),
    ...splitTopicName(row.topic),
    key: row.k,
    state: STATES[row.lane] as Living,
    dueAt: isoInstant(row.due_at),
    attempts: row.attempts,
    deliveries: row.deliveries,
    leaseUntil: row.lane === 0 ? null : isoInstant(row.at),
    lastError: row.error,
    explanation: explain(row, runtime.topics.get(row.topic), going, now),
  };
}

function letterView(letter: LetterRow): ItemView {
  return {
    id: letter.id,
    place: null,
    ...splitTopicName(letter.topic),
    key: letter.k,
    state: "dead",
    dueAt: null,
    attempts: letter.attempts,
    deliveries: letter.deliveries,
    leaseUntil: null,
    lastError: letter.error,
    explanation: `It died at ${isoInstant(letter.died_at)} because ${causeOf(letter)}: nothing tries it again until somebody replays it.`,
  };
}

function causeOf({ reason, attempts }: LetterRow): string {
  switch (reason) {
    case "attempts_exhausted":
      return `it failed ${times(attempts)}, which is as often as its topic allows`;
    case "deliveries_exhausted":
      return "its deliveries were begun and none of them was settled, as when it kills its worker";
    case "malformed":
      return "its payload does not fit its topic's schema";
    case "too_old":
      return "it was older than its topic allows";
    default:
      return `its handler said "${reason}"`;
  }
}

/** One sentence in plain words. Pure. @param topic undefined = no module of this Worker has it */
export function explain(row: FoundRow, topic: Topic | undefined, going: Going, now: number): string {
  if (topic === undefined) return "No module of this Worker has its topic, so nothing claims it.";
  if (row.lane === 0) return ready(row, topic, going, now);
  const until = isoInstant(row.at);
  const anew = going.paused ? "is claimed anew once its topic is resumed" : "is claimed anew by the next tick";
  if (row.lane === 2) {
    const since = isoInstant(row.at - runningLeaseMs(topic));
    if (row.at > now) return `It has been running since ${since} and has until ${until} to end; then it ${anew}.`;
    return `It was begun at ${since} and nobody said how it ended: its lease lapsed at ${until}, so it ${anew}.`;
  }
  if (row.at <= now) {
    return `It was claimed and nothing began it in time: its lease lapsed at ${until}, so it ${anew}.`;
  }
  if (going.path === "drain") {
    return `It was claimed, by a drain or before its topic went to the drain: should nobody have settled it at ${until}, it ${anew}.`;
  }
  if (row.due_at <= now && topic.options.itemsPerMessage > 1) {
    return `It was sent in a message that may carry others, and waits for it or is at work beside them: should nobody have settled it at ${until}, it ${anew}.`;
  }
  const when = row.due_at > now ? `when it is due at ${isoInstant(row.due_at)}` : "when the queue delivers it";
  return `It was sent and waits for its message, which starts it ${when}; should none have come by ${until}, it ${anew}.`;
}

function ready(row: FoundRow, topic: Topic, going: Going, now: number): string {
  const due = isoInstant(row.due_at);
  const late = row.due_at <= now;
  if (row.superseded === 1) {
    return `A newer item has taken its key, so it never runs: the first claim ${late ? "from now on" : `after ${due}`} removes it.`;
  }
  const failed = row.attempts === 0 ? "" : `It failed ${times(row.attempts)} of at most ${topic.options.maxAttempts}; `;
  if (going.paused) {
    const then = late ? "" : `, and it is not due before ${due}`;
    return sentence(`${failed}its topic is paused: nothing claims it until somebody resumes the topic${then}`);
  }
  const budget = "in the first tick that has budget left for its topic's drain";
  if (!late) {
    if (going.path === "drain") return sentence(`${failed}it is due at ${due} and runs after that, ${budget}`);
    const again = failed === "" ? "it is due at" : "its next try is at";
    return sentence(`${failed}${again} ${due}: a tick claims it in time and its message starts it then`);
  }
  const { lastTickAt } = going;
  const stalled = lastTickAt === null || now - lastTickAt > NO_TICK_MS;
  const since = lastTickAt === null ? "no tick has run yet" : `no tick has run since ${isoInstant(lastTickAt)}`;
  const but = stalled ? `, but ${since}` : "";
  if (going.path === "drain") return sentence(`${failed}it has been due since ${due} and runs ${budget}${but}`);
  return sentence(
    `${failed}it has been due since ${due} and is claimed by the next tick, within a minute, the oldest first${but}`,
  );
}

const times = (count: number) => (count === 1 ? "once" : `${count} times`);
const sentence = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
