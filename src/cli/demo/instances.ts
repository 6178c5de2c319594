import { within } from "./within.ts";

/** A Workflow's instance and how it ended. */
export interface KnownInstance {
  id: string;
  status: string;
}

/** What the local platform says of an instance, once it has come to its end. */
export async function instanceStatus(
  url: string,
  workflow: string,
  id: string,
  signal: AbortSignal,
): Promise<KnownInstance> {
  const address = `${url}/cdn-cgi/local/explorer/api/workflows/${workflow}/instances/${id}`;
  return within(`the instance ${id} has not ended`, signal, async () => {
    const answer = await fetch(address, { signal });
    if (!answer.ok) throw new Error(`${address} answered ${answer.status}`);
    const { status } = ((await answer.json()) as { result: { status: string } }).result;
    return ["complete", "errored", "terminated"].includes(status) ? { value: { id, status } } : null;
  });
}
