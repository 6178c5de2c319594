import type { Context } from "hono";
import * as v from "valibot";
import { listWorkflows, showWorkflow, workflowsQuery } from "../../api/workflows.ts";
import { refuse } from "../../core/errors.ts";
import { refused } from "../act.tsx";
import { asJson, Empty, Facts, Pager, State, Table, Time, Whole } from "../parts.tsx";
import { pageOf } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";

type Instance = Awaited<ReturnType<typeof listWorkflows>>["items"][number] & Record<string, unknown>;

/** The latest instances of Workflows, as our own rows know them. */
export async function workflowsPage({ db, deps, now, url }: Visit): Promise<Content> {
  const { limit, cursor } = pageOf(url);
  const query = v.safeParse(workflowsQuery, { limit: String(limit), ...(cursor !== undefined && { cursor }) });
  if (!query.success)
    return refused(refuse("bad_arguments", "cursor", "not a cursor of this list"), "/panel/workflows");
  const page = await listWorkflows(db, deps.instances, query.output);
  return {
    title: "Workflows",
    body: (
      <>
        {page.items.length === 0 ? (
          <Empty>
            No instance yet. A job whose id is in ENABLED_JOBS and WORKER_PROCESSORS starts one for each slot, and a
            dispatched command one for each run.
          </Empty>
        ) : (
          <Table label="Workflow instances" head={["Started", "Workflow", "Instance", "Status", "Works"]}>
            {page.items.map((instance: Instance) => {
              const { workflow, id, status, startedAt } = instance;
              return (
                <tr data-key={`${workflow}-${id}`}>
                  <td>
                    <Time at={startedAt} now={now} />
                  </td>
                  <td>{workflow}</td>
                  <th scope="row">
                    <a href={`/panel/workflows/${encodeURIComponent(workflow)}/${encodeURIComponent(id)}`}>{id}</a>
                  </th>
                  <td>
                    <Status status={status} />
                  </td>
                  <td>
                    <Works of={instance} />
                  </td>
                </tr>
              );
            })}
          </Table>
        )}
        <Pager url={url} next={page.nextCursor} />
      </>
    ),
  };
}

const GOOD = ["succeeded", "complete"];
const BAD = ["failed", "unknown", "lost", "errored", "terminated", "not_started"];

export function Status({ status }: { status: string }) {
  const tone = GOOD.includes(status) ? "good" : BAD.includes(status) ? "bad" : status === "degraded" ? "warn" : "plain";
  return <State word={status} tone={tone} />;
}

function Works({ of: { runId, job, slot } }: { of: Record<string, unknown> }) {
  if (typeof runId === "string") return <a href={`/panel/runs/${encodeURIComponent(runId)}`}>the run</a>;
  if (typeof job !== "string" || typeof slot !== "string") return <span class="none">–</span>;
  return <a href={`/panel/jobs/${encodeURIComponent(job)}/slots/${Date.parse(slot)}`}>{`the slot of ${job}`}</a>;
}

/** An instance's own page at Cloudflare. A link, not a source: nothing is read there. */
function dashboardOf(account: string, workflow: string, id: string): string {
  const [name, instance] = [encodeURIComponent(workflow), encodeURIComponent(id)];
  return `https://dash.cloudflare.com/${account}/workers/workflows/${name}/instance/${instance}`;
}

interface Shown extends Record<string, unknown> {
  status: string;
  startedAt: string;
  endedAt: string | null;
  platformStatus: string | null;
  platformError: string | null;
  steps: { position: number; name: string; startedAt: string; updatedAt: string; progress: unknown }[];
}

/** One instance with its steps: what our rows say, and what the platform says. */
export async function workflowPage({ db, deps, now }: Visit, c: Context<Env>): Promise<Content> {
  const [workflow, id] = [c.req.param("workflow") ?? "", c.req.param("id") ?? ""];
  const view = await showWorkflow(db, deps.instances, workflow, id);
  if ("code" in view) return refused(view, "/panel/workflows");
  const { status, startedAt, endedAt, platformStatus, platformError, steps, ...works } = view as Shown;
  const ended = endedAt !== null;
  // The platform's words are its own: what counts is whether both say that it goes on.
  const platformEnded = platformStatus !== null && ["complete", "errored", "terminated"].includes(platformStatus);
  const differ = platformStatus !== null && ended !== platformEnded;
  return {
    title: "Workflow instance",
    live: !ended,
    body: (
      <>
        {differ ? (
          <p class="notice bad">
            {ended
              ? "It has ended by our rows, and the platform says that it goes on: it makes no more calls of its own."
              : "It has ended on the platform and never wrote its end here: the next claim charges its slot as unknown."}
          </p>
        ) : null}
        <Facts
          rows={[
            ["Workflow", workflow],
            ["Instance", <code>{id}</code>],
            ["Works", <Works of={works} />],
            ["Status, by our rows", <Status status={status} />],
            [
              "Status, by the platform",
              platformStatus === null ? (
                <span>{platformError ?? "not known"}</span>
              ) : (
                <>
                  <Status status={platformStatus} /> {platformError === null ? "" : platformError}
                </>
              ),
            ],
            ...(deps.account === null
              ? []
              : [["Elsewhere", <a href={dashboardOf(deps.account, workflow, id)}>Cloudflare's dashboard</a>] as const]),
            ["Started", <Time at={startedAt} now={now} />],
            ["Ended", <Time at={endedAt} now={now} />],
          ]}
        />
        <h2>Steps</h2>
        {steps.length === 0 ? (
          <Empty>No step has been kept: it has not begun, or its steps were deleted for their age.</Empty>
        ) : (
          <ol class="steps">
            {steps.map((step) => (
              <li data-key={`step-${step.position}`}>
                <h3>{step.name}</h3>
                <p>
                  <Time at={step.startedAt} now={now} />, last written <Time at={step.updatedAt} now={now} />
                </p>
                {asJson(step.progress) === "{}" ? null : (
                  <Whole label={`Progress of ${step.name}`} text={asJson(step.progress)} />
                )}
              </li>
            ))}
          </ol>
        )}
      </>
    ),
  };
}
