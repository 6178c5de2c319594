import * as v from "valibot";
import { type Refusal, refuse } from "../core/errors.ts";
import { NAME } from "../core/names.ts";
import { checkJson, PAYLOAD_MAX_BYTES, parseJson } from "../core/payload.ts";
import { errorText } from "../core/text.ts";
import { DAY, isoInstant } from "../core/time.ts";
import type { CommandAnswer } from "../outbox/module.ts";
import type { Invocation } from "../outbox/runtime.ts";
import { type Actor, personById, SCOPE, type Token } from "./actor.ts";
import { chatForm, readChat } from "./chat.ts";
import { define, type Registered } from "./define.ts";
import { checkArguments, execute } from "./execute.ts";
import { digestOf, missingFor, type Step, sorted, stepSchema, unfit } from "./plan-steps.ts";
import { may } from "./policy.ts";
import { isKey } from "./words.ts";

/** Plans: write commands that a named person approved as they stand, and every statement that writes `plans`. */

/** How long an approval holds, ms. */
export const PLAN_MS = 30 * DAY;
/** Commands of one plan. */
const PLAN_COMMANDS = 20;

/** A row of `plans`. */
export interface PlanRow {
  name: string;
  /** JSON: a list of {@link Step}. */
  commands: string;
  digest: string;
  approved_by: string;
  approved_at: number;
  expires_at: number;
}

type Registry = ReadonlyMap<string, Registered>;
type NotApproved = Refusal<"plan_not_approved" | "not_granted">;

const name = v.pipe(v.string(), v.regex(NAME, "a plan is named in a-z, 0-9 and -"));

function putPlan(db: D1Database, row: PlanRow): D1PreparedStatement {
  const { name, commands, digest, approved_by, approved_at, expires_at } = row;
  return db
    .prepare(
      `INSERT INTO plans (name, commands, digest, approved_by, approved_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
       ON CONFLICT (name) DO UPDATE SET commands = excluded.commands, digest = excluded.digest,
         approved_by = excluded.approved_by, approved_at = excluded.approved_at, expires_at = excluded.expires_at`,
    )
    .bind(name, commands, digest, approved_by, approved_at, expires_at);
}

function dropPlan(db: D1Database, name: string): D1PreparedStatement {
  return db.prepare("DELETE FROM plans WHERE name = ?1").bind(name);
}

const COLUMNS = "name, commands, digest, approved_by, approved_at, expires_at";

/** Those of the plans that there are: rows of {@link PlanRow}. */
export function readPlans(db: D1Database, names: readonly string[]): D1PreparedStatement {
  return db
    .prepare(`SELECT ${COLUMNS} FROM plans WHERE name IN (SELECT value FROM json_each(?1))`)
    .bind(JSON.stringify(names));
}

function listPlans(db: D1Database, after: string, limit: number): D1PreparedStatement {
  return db.prepare(`SELECT ${COLUMNS} FROM plans WHERE name > ?1 ORDER BY name LIMIT ?2`).bind(after, limit);
}

/**
 * Why a plan may not run now under this actor; null = it may. A plan that is not there is `null` as a row.
 * `plan_not_approved`: nobody approved it, or not as it stands, or no longer. `not_granted`: the actor lacks a grant.
 */
export async function checkPlan(
  row: PlanRow | null,
  at: { tokens: readonly Token[]; registry: Registry; actor: Actor; now: number },
): Promise<null | NotApproved> {
  const checked = await readPlan(row, at);
  return "ok" in checked ? checked : null;
}

/** The steps of a plan that may run now. */
async function readPlan(
  row: PlanRow | null,
  { tokens, registry, actor, now }: { tokens: readonly Token[]; registry: Registry; actor: Actor; now: number },
): Promise<{ steps: { step: Step; command: Registered }[] } | NotApproved> {
  const not = (message: string) => refuse("plan_not_approved", "name", message);
  if (row === null) return not("there is no such plan");
  const plan = `plan ${row.name}`;
  if (now >= row.expires_at) return not(`the approval of ${plan} ended at ${isoInstant(row.expires_at)}`);
  const json = parseJson(row.commands);
  const parsed = v.safeParse(v.array(stepSchema), json.ok ? json.value : null);
  if (!parsed.success || (await digestOf(parsed.output)) !== row.digest) {
    return not(`${plan} is not what was approved: it was changed`);
  }
  const approver = personById(row.approved_by, tokens);
  if (approver === null) return not(`${row.approved_by}, who approved ${plan}, is gone`);
  const steps: { step: Step; command: Registered }[] = [];
  for (const step of parsed.output) {
    const command = registry.get(step.command);
    const problem = unfit(command);
    if (command === undefined || problem !== null) return not(`${plan}: ${step.command}: ${problem}`);
    const lost = missingFor(step, command, approver);
    if (lost !== null) return not(`${row.approved_by}, who approved ${plan}, no longer holds ${lost}`);
    steps.push({ step, command });
  }
  // All of them before the first runs: half a plan is none.
  for (const { step, command } of steps) {
    const missing = missingFor(step, command, actor);
    if (missing !== null) return refuse("not_granted", missing, `${plan}: ${command.name} needs ${missing}`);
  }
  return { steps };
}

/** The commands about plans. */
export function planCommands(deps: {
  /** Asked late: the registry holds these commands too. */
  registry: () => Registry;
  tokens: readonly Token[];
}): readonly Registered[] {
  const asked = v.union(
    [
      v.string(),
      v.strictObject({
        command: v.string(),
        args: v.optional(v.record(v.string(), v.unknown()), {}),
        scope: v.optional(v.nullable(v.pipe(v.string(), v.regex(SCOPE, "not a scope"))), null),
      }),
    ],
    "a command is a text, or {command, args, scope}",
  );
  return [
    define(
      {
        name: "plan.approve",
        effect: "write",
        grant: "plan:write",
        help: "Approve a fixed list of write commands for thirty days, as it stands.",
        positional: ["name"],
      },
      v.strictObject({ name, commands: v.pipe(v.array(asked), v.minLength(1), v.maxLength(PLAN_COMMANDS)) }),
      async (args, { db, now }, actor) => {
        const steps: Step[] = [];
        for (const [index, one] of args.commands.entries()) {
          const step = await readStep(one, `commands[${index}]`, deps.registry(), actor);
          if ("ok" in step) return step;
          steps.push(step);
        }
        const commands = checkJson(sorted(steps), { maxBytes: PLAN_COMMANDS * PAYLOAD_MAX_BYTES });
        if (!commands.ok) return refuse("bad_arguments", "commands", `${commands.path}: ${commands.problem}`);
        const digest = await digestOf(JSON.parse(commands.json) as Step[]);
        const expires = now + PLAN_MS;
        const approval = { approved_by: actor.id, approved_at: now, expires_at: expires };
        await putPlan(db, { name: args.name, commands: commands.json, digest, ...approval }).run();
        return { ok: true, result: { name: args.name, digest, expiresAt: isoInstant(expires) } };
      },
    ),
    define(
      {
        name: "plan.remove",
        effect: "write",
        grant: "plan:write",
        help: "Take a plan back: it runs no more.",
        positional: ["name"],
      },
      v.strictObject({ name }),
      async (args, { db }) => {
        const { meta } = await dropPlan(db, args.name).run();
        if (meta.changes === 0) return refuse("not_found", "name", `there is no plan ${args.name}`);
        return { ok: true, result: { name: args.name } };
      },
    ),
    define(
      {
        name: "plan.list",
        effect: "read",
        grant: "plan:read",
        help: "List plans: their commands, who approved them, until when.",
      },
      v.strictObject({
        cursor: v.optional(v.string(), ""),
        limit: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(200)), 50),
      }),
      async ({ cursor, limit }, { db }) => {
        const { results } = await listPlans(db, cursor, limit).all<PlanRow>();
        const last = results.length < limit ? undefined : results.at(-1);
        const items = results.map((row) => viewOf(row, deps.registry()));
        return { ok: true, result: { items, nextCursor: last?.name ?? null } };
      },
    ),
    define(
      {
        name: "plan.run",
        effect: "exec",
        grant: "plan:run",
        help: "Run an approved plan, in its order, under the runner's grants.",
        positional: ["name"],
      },
      v.strictObject({ name }),
      (args, invocation, actor) => run(args.name, invocation, actor, deps),
    ),
  ];
}

/** A command that a person wants in a plan, once it is one that he may run himself. */
async function readStep(
  asked: string | Step,
  field: string,
  registry: Registry,
  approver: Actor,
): Promise<Step | Refusal> {
  const bad = (message: string) => refuse("bad_arguments", field, `${field}: ${message}`);
  const read = typeof asked === "string" ? await readChat(asked, registry) : null;
  if (read?.ok === false) return bad(read.message);
  const step = read === null ? (asked as Step) : { command: read.command.name, args: read.input, scope: read.scope };
  const command = registry.get(step.command);
  const problem = unfit(command);
  if (command === undefined || problem !== null) return bad(`${step.command}: ${problem}`);
  const odd = Object.keys(step.args).find((key) => !isKey(key));
  if (odd !== undefined) return bad(`no text can name the argument ${JSON.stringify(odd)}`);
  const checked = await checkArguments(command, step.args);
  if (!checked.ok) return bad(`${step.command}: ${checked.message}`);
  const allowed = may(approver, command, { scope: step.scope });
  if (allowed.ok) return step;
  return allowed.code === "bad_arguments"
    ? bad(allowed.message)
    : refuse(allowed.code, allowed.field, `${field}: ${allowed.message}`);
}

async function run(
  name: string,
  invocation: Invocation,
  actor: Actor,
  { registry, tokens }: { registry: () => Registry; tokens: readonly Token[] },
): Promise<CommandAnswer> {
  const { db, now } = invocation;
  const { results } = await readPlans(db, [name]).all<PlanRow>();
  const plan = await readPlan(results[0] ?? null, { tokens, registry: registry(), actor, now });
  if ("ok" in plan) return plan;
  const answers: { command: string; result: unknown }[] = [];
  const of = plan.steps.length;
  for (const { step, command } of plan.steps) {
    const where = `plan ${name}: ${answers.length} of ${of} ran, then ${command.name}`;
    const answer = await execute(command, step.args, invocation, actor, step.scope).catch((error: unknown) => {
      throw new Error(`${where} threw ${errorText(error)}`, { cause: error });
    });
    if (!answer.ok) return refuse(answer.code, answer.field, `${where} was refused: ${answer.message}`);
    answers.push({ command: command.name, result: answer.result });
  }
  return { ok: true, result: { ran: answers.length, of, results: answers } };
}

function viewOf(row: PlanRow, registry: Registry) {
  const json = parseJson(row.commands);
  const steps = v.safeParse(v.array(stepSchema), json.ok ? json.value : null);
  const commands = steps.success
    ? steps.output.map(({ command, args, scope }) =>
        chatForm(registry.get(command) ?? { name: command, positional: [] }, args, scope),
      )
    : [];
  return {
    name: row.name,
    commands,
    digest: row.digest,
    approvedBy: row.approved_by,
    approvedAt: isoInstant(row.approved_at),
    expiresAt: isoInstant(row.expires_at),
  };
}
