import { WorkflowEntrypoint, type WorkflowEvent, type WorkflowStep } from "cloudflare:workers";
import * as v from "valibot";
import { beginStep, executeStep, finishStep } from "../src/commands/run.ts";
import { RUN_MS, type RunEnd } from "../src/commands/runs.ts";
import { errorText } from "../src/core/text.ts";
import { deploymentOf, type WorkerOptions } from "../src/create-worker.ts";
import type { Bindings } from "../src/outbox/configure.ts";
import { beginInvocation } from "../src/outbox/runtime.ts";

const paramsSchema = v.object({ run: v.pipe(v.string(), v.nonEmpty()) });

/** Begin and finish write one row by its id, and may be asked again. */
const KEYED = { retries: { limit: 5, delay: 2_000, backoff: "exponential" }, timeout: 60_000 } as const;
/** What a command did is not known after a crash: nothing runs it again by itself. */
const ONCE = { retries: { limit: 0, delay: 1_000 }, timeout: RUN_MS } as const;

/** Said by name, so that the package's types can say it: a class without a name has no place for what is protected. */
type RunClass = new (ctx: ExecutionContext, env: Cloudflare.Env) => WorkflowEntrypoint<Cloudflare.Env, unknown>;

/**
 * The Workflow whose instances are runs, over the same options as the Worker's handlers: export it under the class name
 * that the binding `RUN` says.
 */
export function runWorkflow<Env extends object = Bindings>(options: WorkerOptions<Env>): RunClass {
  return class RunCommand extends WorkflowEntrypoint<Cloudflare.Env, unknown> {
    override async run({ payload }: Readonly<WorkflowEvent<unknown>>, step: WorkflowStep) {
      const { run: id } = v.parse(paramsSchema, payload);
      const { runtime, dispatcher, problems } = deploymentOf(options, this.env as unknown as Env);
      if (runtime === null) throw new Error(`misconfigured: ${JSON.stringify(problems)}`);
      const invocation = () => beginInvocation(runtime, runtime.ports.clock());
      const begun = await step.do("begin", KEYED, () => beginStep(invocation(), id));
      if (begun === null) return { run: id, came: "stale" };
      const end = await step
        .do("execute", ONCE, () => executeStep(invocation(), dispatcher, begun))
        .catch((error: unknown): RunEnd => ({ status: "lost", result: null, error: errorText(error) }));
      const came = await step.do("finish", KEYED, () => finishStep(invocation(), dispatcher, begun, end));
      return { run: id, status: end.status, came };
    }
  };
}
