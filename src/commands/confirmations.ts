import * as v from "valibot";
import { refuse } from "../core/errors.ts";
import { parseJson } from "../core/payload.ts";
import { DAY, isoInstant, MINUTE } from "../core/time.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { createSeqs } from "../outbox/seq.ts";
import { type Actor, holds } from "./actor.ts";
import { chatForm } from "./chat.ts";
import { carryOut, type Said, secretMessage } from "./decide.ts";
import { define, type Registered } from "./define.ts";
import { launch } from "./dispatch.ts";
import type { Dispatcher } from "./dispatcher.ts";
import { may } from "./policy.ts";
import { admit, yieldPlace } from "./runs.ts";
import { findMessage, findThread, type MessageRow, say, type ThreadRow } from "./threads.ts";

/**
 * Every statement that writes `confirmations`: a command that was refused a schedule, or that a router inferred, is run
 * by a person under his own grants. He is asked to confirm; he is authorized at that moment; it happens once.
 */

/** How long a confirmation may be given, ms: long enough to read what it does, short enough to still mean it. */
export const CONFIRM_MS = 10 * MINUTE;
/** How long confirmations are kept, ms, and how many go when another is asked for. */
const KEEP_CONFIRMATIONS_MS = 90 * DAY;
const FORGET_CONFIRMATIONS = 20;

const saidSchema = v.object({
  command: v.string(),
  args: v.record(v.string(), v.unknown()),
  scope: v.nullable(v.string()),
});

interface Row {
  id: string;
  message: string;
  requester: string;
  expires_at: number;
  confirmed_at: number | null;
}

/** What a message holds that a person may run, and where it stands; null = nothing. */
async function readOffer(
  db: D1Database,
  id: string,
  registry: ReadonlyMap<string, Registered>,
): Promise<{ said: Said; thread: ThreadRow } | null> {
  const message = await findMessage(db, id).first<MessageRow>();
  if (message === null || (message.kind !== "offer" && message.kind !== "refusal")) return null;
  const data = parseJson(message.data);
  const parsed = v.safeParse(saidSchema, data.ok ? data.value : null);
  const command = parsed.success ? registry.get(parsed.output.command) : undefined;
  const thread = await findThread(db, { id: message.thread }).first<ThreadRow>();
  if (!parsed.success || command === undefined || thread === null) return null;
  const { args: input, scope } = parsed.output;
  return { said: { command, input, scope, form: chatForm(command, input, scope) }, thread };
}

function mayRun(actor: Actor, { command, scope }: Said, { channel }: ThreadRow) {
  if (!holds(actor, "channels", channel)) return refuse("not_granted", "channel", `this needs the channel ${channel}`);
  if (command.secret) return refuse("secret_answer", "message", secretMessage(command));
  return may(actor, command, { channel, scope });
}

async function ask(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  message: string,
): Promise<CommandAnswer> {
  const { db, now, runtime } = invocation;
  const offer = await readOffer(db, message, dispatcher.registry());
  if (offer === null) return refuse("not_found", "message", `no message ${message} holds a command to run`);
  const allowed = mayRun(actor, offer.said, offer.thread);
  if (!allowed.ok) return allowed;
  const id = `confirm-${createSeqs(runtime.ports.bytes)(now)}`;
  const expires = now + CONFIRM_MS;
  const text = `${offer.said.form}\n${actor.id} is asked to confirm it until ${isoInstant(expires)}: run confirm ${id}`;
  const said = {
    id: `text-${id}`,
    thread: offer.thread.id,
    at: now,
    author: "duework",
    kind: "text" as const,
    text,
    data: { confirmation: id },
  };
  await dispatcher.channels.commit(
    invocation,
    [
      db
        .prepare("INSERT INTO confirmations (id, message, requester, asked_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)")
        .bind(id, message, actor.id, now, expires),
      ...say(db, [said]),
      forget(db, now),
    ],
    [{ channel: offer.thread.channel, message: said.id }],
  );
  const { command, input, form } = offer.said;
  const result = { confirmation: id, expiresAt: isoInstant(expires), command: command.name, args: input, form };
  return { ok: true, result };
}

async function confirm(
  invocation: Invocation,
  dispatcher: Dispatcher,
  actor: Actor,
  id: string,
): Promise<CommandAnswer> {
  const { db, now, runtime } = invocation;
  if (dispatcher.runs === null) return refuse("not_configured", "RUN", "dispatch needs the Workflow bound as RUN");
  const row = await db.prepare("SELECT * FROM confirmations WHERE id = ?1").bind(id).first<Row>();
  // Another's confirmation is as good as none: its id says nothing to whom it was not given.
  if (row?.requester !== actor.id) return refuse("not_found", "id", `you were not asked for ${id}`);
  const used = () => refuse("already_run", "id", "that command was confirmed already");
  if (row.confirmed_at !== null) return used();
  if (row.expires_at <= now) return refuse("confirmation_expired", "id", "its ten minutes have passed: ask anew");
  const offer = await readOffer(db, row.message, dispatcher.registry());
  if (offer === null) return refuse("not_found", "message", "the message is gone, or its command is");
  const allowed = mayRun(actor, offer.said, offer.thread);
  if (!allowed.ok) return allowed;

  const { channel, id: thread } = offer.thread;
  const runId = `run-${createSeqs(runtime.ports.bytes)(now)}`;
  const place = { actor, channel, thread, runId, at: now, firing: null, admitIf: { confirmation: id } };
  const { run, reply } = carryOut({ kind: "run", said: offer.said }, place);
  if (run === null || reply === null) throw new Error("a run was not carried out");
  const result = { runId, thread };
  const [, admitted, confirmed] = await dispatcher.channels.commit(
    invocation,
    [
      yieldPlace(db, { thread, confirmation: id, result }, now),
      admit(db, [run], now),
      db
        .prepare(
          `UPDATE confirmations SET confirmed_at = ?2, run = ?3
           WHERE id = ?1 AND confirmed_at IS NULL AND EXISTS (SELECT 1 FROM runs WHERE id = ?3) RETURNING run`,
        )
        .bind(id, now, runId),
      ...say(db, [reply]),
    ],
    [{ channel, message: reply.id }],
  );
  if (admitted?.results.length === 0 || confirmed?.results.length === 0) {
    const { message } = row;
    const done = await db
      .prepare("SELECT 1 FROM confirmations WHERE message = ?1 AND confirmed_at IS NOT NULL")
      .bind(message)
      .first();
    return done === null ? refuse("thread_busy", "thread", "the thread has a live run: wait for its result") : used();
  }
  await launch(invocation, dispatcher, [runId]);
  return { ok: true, result };
}

function forget(db: D1Database, now: number): D1PreparedStatement {
  return db
    .prepare(
      `DELETE FROM confirmations WHERE id IN (
         SELECT id FROM confirmations WHERE asked_at < ?1 ORDER BY asked_at LIMIT ${FORGET_CONFIRMATIONS})`,
    )
    .bind(now - KEEP_CONFIRMATIONS_MS);
}

const id = v.pipe(v.string(), v.minLength(1), v.maxLength(100));

/** `run as-me` and `run confirm`. */
export function confirmationCommands(dispatcher: Dispatcher): readonly Registered[] {
  return [
    define(
      {
        name: "run.as-me",
        effect: "exec",
        grant: "dispatch:run",
        help: "Asks you to confirm the command of a message, to be run with your own grants.",
        positional: ["message"],
        personOnly: true,
      },
      v.strictObject({ message: id }),
      ({ message }, invocation, actor) => ask(invocation, dispatcher, actor, message),
    ),
    define(
      {
        name: "run.confirm",
        effect: "exec",
        grant: "dispatch:run",
        help: "Confirms what you were asked for: it runs once, with the grants you hold now.",
        positional: ["id"],
        personOnly: true,
      },
      v.strictObject({ id }),
      (args, invocation, actor) => confirm(invocation, dispatcher, actor, args.id),
    ),
  ];
}
