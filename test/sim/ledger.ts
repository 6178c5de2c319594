import { itemId } from "../../src/outbox/seq.ts";
import type { Topic } from "../../src/outbox/topic.ts";
import type { Actor } from "./stage.ts";

/** All that the database holds, after one call. */
export interface Snapshot {
  items: SeenRow[];
  keys: { topic: string; k: string; seq: string; heldUntil: number | null }[];
  letters: { id: string; reason: string; attempts: number; deliveries: number }[];
  topics: { topic: string; path: "queue" | "drain"; paused: 0 | 1 }[];
}

export interface SeenRow {
  topic: string;
  lane: 0 | 1 | 2;
  at: number;
  seq: string;
  turn: number;
  due: number;
  k: string | null;
  attempts: number;
  deliveries: number;
  lapses: number;
}

/** A promise that was broken. */
export class Broken extends Error {
  override readonly name = "Broken";
}

/** One delivery that began: of which item, under which turn of its row, by whom, until when. */
interface Start {
  id: string;
  turn: number;
  actor: Actor;
  leaseEnd: number;
}

/**
 * Holds everything that happens to the promises of the lease protocol. It sees the database after each single call,
 * so that each change of a row is one known invocation's, and each start of a handler.
 */
export class Ledger {
  snapshot: Snapshot = { items: [], keys: [], letters: [], topics: [] };
  /** Items that came into being, were settled as done, or are dead letters. */
  readonly born = new Set<string>();
  readonly done = new Set<string>();
  readonly starts: Start[] = [];
  readonly #rows = new Map<string, SeenRow>();
  readonly #movedBy = new Map<string, Actor>();
  readonly #startedTurns = new Map<string, Start>();
  readonly #topics: ReadonlyMap<string, Topic>;
  readonly #clock: { now: number };
  #fresh: { id: string; actor: Actor }[] = [];
  /** The latest instant that the clock has shown. */
  latest = 0;

  constructor(topics: readonly Topic[], clock: { now: number }) {
    this.#topics = new Map(topics.map((topic) => [topic.name, topic]));
    this.#clock = clock;
  }

  start(id: string, actor: Actor): void {
    this.#fresh.push({ id, actor });
  }

  /** Each start is of a row whose lease is the starter's alone, and lasts as long as the handler may. */
  checkStarts(): void {
    const fresh = this.#fresh;
    this.#fresh = [];
    for (const { id, actor } of fresh) {
      const row = this.#rows.get(id);
      if (row === undefined || row.lane === 0) throw new Broken(`${actor.name} started ${id}, which has no lease`);
      const key = `${id} ${row.turn}`;
      const other = this.#startedTurns.get(key);
      if (other !== undefined)
        throw new Broken(`${actor.name} started ${id} on the lease that ${other.actor.name} has`);
      const mover = this.#movedBy.get(id);
      if (row.lane === 2 && mover !== actor) throw new Broken(`${actor.name} started ${id}, begun by ${mover?.name}`);
      const left = row.at - this.#clock.now;
      const { deadlineMs } = this.#topic(row).options;
      if (left < deadlineMs) throw new Broken(`${actor.name} started ${id} with ${left} ms of its lease left`);
      const start = { id, turn: row.turn, actor, leaseEnd: row.at };
      this.#startedTurns.set(key, start);
      this.starts.push(start);
    }
  }

  observe(actor: Actor, after: Snapshot): void {
    this.latest = Math.max(this.latest, this.#clock.now);
    const before = this.snapshot;
    this.snapshot = after;
    const rows = new Map(after.items.map((row) => [itemId(row.topic, row.seq), row]));
    if (rows.size !== after.items.length) throw new Broken("an item has two rows");
    const letters = new Set(after.letters.map(({ id }) => id));
    const lettersBefore = new Set(before.letters.map(({ id }) => id));
    for (const [id, row] of rows) {
      const old = this.#rows.get(id);
      if (old === undefined) this.#birth(actor, id, row, after);
      else if (old.turn !== row.turn) this.#moved(actor, id, old, row, after);
      else if (JSON.stringify(old) !== JSON.stringify(row)) throw new Broken(`${id} changed under its fence`);
      if (letters.has(id)) throw new Broken(`${id} is a row and a dead letter`);
    }
    for (const [id, old] of this.#rows) {
      if (!rows.has(id)) this.#ended(actor, id, old, letters, before);
    }
    const born = [...rows.keys()].filter((id) => !this.#rows.has(id)).length;
    const dug = [...lettersBefore].filter((id) => !letters.has(id)).length;
    if (dug > born) throw new Broken("a dead letter is gone and no item has come of it");
    for (const id of letters) {
      if (!lettersBefore.has(id) && !this.#rows.has(id)) throw new Broken(`${id} died and was no item`);
    }
    this.#checkKeys(after, rows);
    this.#rows.clear();
    for (const [id, row] of rows) this.#rows.set(id, row);
  }

  /** Nothing is left, nothing was lost, no key is held by nobody. `heldBy` is the clock at the end. */
  checkEnd(): void {
    const { items, letters } = this.snapshot;
    if (items.length > 0) throw new Broken(`still there after the calm: ${JSON.stringify(items)}`);
    const held = this.snapshot.keys.filter(({ heldUntil }) => heldUntil === null);
    if (held.length > 0) throw new Broken(`keys held by nobody: ${JSON.stringify(held)}`);
    for (const { id } of letters) if (this.done.has(id)) throw new Broken(`${id} is done and dead`);
  }

  #topic(row: SeenRow): Topic {
    const topic = this.#topics.get(row.topic);
    if (topic === undefined) throw new Broken(`a row of the unknown topic ${row.topic}`);
    return topic;
  }

  #setting(row: SeenRow, { topics }: Snapshot): { path: "queue" | "drain"; paused: boolean } {
    const set = topics.find(({ topic }) => topic === row.topic);
    return { path: set?.path ?? this.#topic(row).options.path, paused: set?.paused === 1 };
  }

  #birth(actor: Actor, id: string, row: SeenRow, after: Snapshot): void {
    if (this.born.has(id)) throw new Broken(`${id} came back`);
    this.born.add(id);
    this.#movedBy.set(id, actor);
    const { path, paused } = this.#setting(row, after);
    if (row.lane === 1 && (paused || path !== "queue")) throw new Broken(`${id} was born leased on a closed path`);
    if (row.lane === 2) throw new Broken(`${id} was born running`);
  }

  #moved(actor: Actor, id: string, old: SeenRow, row: SeenRow, after: Snapshot): void {
    if (row.turn !== old.turn + 1) throw new Broken(`${id} was moved twice in one call`);
    const claimed = row.lane === 1 && (old.lane === 0 || row.lapses === old.lapses + 1);
    const begun = old.lane === 1 && row.lane === 2;
    if (claimed) {
      if (old.lane > 0 && old.at > this.latest) {
        throw new Broken(`${actor.name} took ${id} over ${old.at - this.latest} ms before its lease's end`);
      }
      if (this.#setting(row, after).paused) throw new Broken(`${actor.name} claimed ${id} while its topic is paused`);
    } else if (!begun) {
      const start = this.#startedTurns.get(`${id} ${old.turn}`);
      if (start !== undefined && start.actor !== actor) {
        throw new Broken(`${actor.name} moved ${id}, which ${start.actor.name} runs`);
      }
      if (old.lane === 2 && this.#movedBy.get(id) !== actor) {
        throw new Broken(`${actor.name} moved ${id}, which ${this.#movedBy.get(id)?.name} has begun`);
      }
    } else {
      const start = this.#startedTurns.get(`${id} ${old.turn}`);
      if (start !== undefined && start.actor !== actor) throw new Broken(`${actor.name} began ${id}, which runs`);
    }
    const { maxAttempts, maxDeliveries } = this.#topic(row).options;
    if (row.attempts > old.attempts + 1) throw new Broken(`${id} has two attempts of one delivery`);
    if (row.attempts >= maxAttempts) throw new Broken(`${id} lives with ${row.attempts} attempts`);
    if (row.deliveries > maxDeliveries + 1) throw new Broken(`${id} was delivered ${row.deliveries} times`);
    if (row.deliveries > old.deliveries && !(begun && row.lapses > 0))
      throw new Broken(`${id}: a delivery is counted for nothing`);
    this.#movedBy.set(id, actor);
  }

  #ended(actor: Actor, id: string, old: SeenRow, letters: ReadonlySet<string>, before: Snapshot): void {
    if (old.lane === 0) throw new Broken(`${actor.name} ended ${id}, which had no lease`);
    const start = this.#startedTurns.get(`${id} ${old.turn}`);
    const superseded =
      old.k !== null && !before.keys.some(({ topic, k, seq }) => topic === old.topic && k === old.k && seq === old.seq);
    if (letters.has(id)) {
      if (this.done.has(id)) throw new Broken(`${id} is done and dead`);
      return;
    }
    if (start === undefined && !superseded) throw new Broken(`${actor.name} ended ${id}, which never ran`);
    if (start !== undefined && start.actor !== actor)
      throw new Broken(`${actor.name} ended ${id}, which ${start.actor.name} runs`);
    if (this.done.has(id)) throw new Broken(`${id} was settled twice`);
    this.done.add(id);
  }

  #checkKeys({ keys }: Snapshot, rows: ReadonlyMap<string, SeenRow>): void {
    for (const { topic, k, seq, heldUntil } of keys) {
      const row = rows.get(itemId(topic, seq));
      if (heldUntil === null && row?.k !== k) throw new Broken(`the key ${k} of ${topic} is held by no living item`);
      if (heldUntil !== null && row !== undefined)
        throw new Broken(`the key ${k} of ${topic} is past its item and has one`);
    }
  }
}
