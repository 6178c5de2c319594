import { readdirSync, readFileSync } from "node:fs";

/** What a local runtime holds in memory. */

/** Resident memory of the workerd processes that this process, or a child of it, has started, MiB. */
export function residentMiB(): number {
  const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const status = new Map(all.flatMap((pid) => readStatus(pid)).map((one) => [one.pid, one]));
  const isOurs = (pid: string): boolean =>
    pid === String(process.pid) || (status.has(pid) && isOurs(status.get(pid)?.parent ?? ""));
  return [...status.values()]
    .filter(({ pid, name }) => name === "workerd" && isOurs(pid))
    .reduce((sum, { kib }) => sum + kib / 1_024, 0);
}

function readStatus(pid: string): { pid: string; parent: string; name: string; kib: number }[] {
  try {
    const text = readFileSync(`/proc/${pid}/status`, "utf8");
    const field = (name: string) => new RegExp(`^${name}:\\s*(\\S+)`, "m").exec(text)?.[1] ?? "";
    return [{ pid, parent: field("PPid"), name: field("Name"), kib: Number(field("VmRSS") || 0) }];
  } catch {
    return [];
  }
}

/**
 * The heap of the Worker's own isolate once all that nobody holds is collected, MiB.
 * @param inspector the port of the runtime's inspector
 */
export async function heapMiB(inspector: number): Promise<number> {
  const targets = await (await fetch(`http://127.0.0.1:${inspector}/json`)).json();
  const [target] = targets as { webSocketDebuggerUrl: string }[];
  if (target === undefined) throw new Error("the inspector names no isolate");
  // The inspector lets in only who says where he comes from; the types of WebSocket do not know Node's second argument.
  const options = { headers: { origin: "http://localhost" } } as unknown as string[];
  const socket = new WebSocket(target.webSocketDebuggerUrl, options);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error("the inspector does not answer"));
  });
  try {
    await ask(socket, 1, "HeapProfiler.collectGarbage");
    return ((await ask(socket, 2, "Runtime.getHeapUsage")).usedSize ?? 0) / 2 ** 20;
  } finally {
    socket.close();
  }
}

function ask(socket: WebSocket, id: number, method: string): Promise<{ usedSize?: number }> {
  return new Promise((resolve, reject) => {
    socket.addEventListener("message", ({ data }) => {
      const answer = JSON.parse(String(data)) as { id?: number; result?: { usedSize?: number } };
      if (answer.id === id) resolve(answer.result ?? {});
    });
    socket.addEventListener("close", () => reject(new Error("the inspector went away")));
    socket.send(JSON.stringify({ id, method }));
  });
}
