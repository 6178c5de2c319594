import { mkdir, readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fireTick } from "../../src/cli/client.ts";
import { freePort, type Local, ROOT, startLocal } from "../../src/cli/local.ts";
import { type Group, startGroup } from "../../src/cli/process.ts";
import { cpuSeconds, findProcess } from "./machine.node.ts";
import type { Server } from "./servers.node.ts";

/** What has run since the last `clear`. */
export interface Ran {
  times: number;
  distinct: number;
  /** From an item's enqueue to its start, ms. */
  late: number[];
}

/** One job system under one setting, ready to be measured. */
export interface Runner {
  /** Puts items in that are due. With a `url`, each POSTs its number to it. */
  enqueue(count: number, url?: string): Promise<void>;
  /** The same, by a call that also hands them on. */
  enqueueSent(count: number): Promise<void>;
  /** Puts in one item as an application does. */
  one(): Promise<void>;
  /** Starts to work what is due. */
  begin(): Promise<void>;
  /** Ends working, when what is left is nothing. */
  rest(): Promise<void>;
  left(): Promise<boolean>;
  ran(): Promise<Ran>;
  clear(): Promise<void>;
  /** Puts in rows that are not due, or finished. */
  fill(count: number): Promise<void>;
  /** Processor time used so far, its server's too, s. */
  cpu(): number;
  /** Ends the worker as a crash does, and starts it again on what is stored. */
  crash(): Promise<void>;
  stop(): Promise<void>;
}

/** Rows of one call that enqueues. */
const PAGE = 10_000;
const MINUTE = 60_000;

async function call<Body>(url: string, body?: unknown): Promise<Body> {
  const answer = await fetch(url, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as Body;
}

/** Starts our local runtime. Its runners share it: `topic` is all that differs between them. */
export async function startOurs(
  dir: string,
): Promise<{ runner(topic: string): Runner; bare(work: "loop" | "alone"): Runner; stop(): Promise<void> }> {
  const options = {
    dir,
    root: path.join(ROOT, "test/bench/fixture"),
    frozen: true,
    flags: ["--var", "SCHEDULED_LIMITS:unbounded"],
  };
  const start = async (again: boolean) => startLocal({ ...options, again, port: await freePort() });
  let local: Local = await start(false);
  return {
    runner: (topic) =>
      ourRunner(
        topic,
        () => local,
        async () => {
          await local.kill9();
          local = await start(true);
        },
      ),
    bare: (work) => bareRunner(work, () => local),
    stop: () => local.stop(),
  };
}

/** The same runtime at the same work without us: what of a figure is not ours to change. It stores nothing. */
function bareRunner(work: "loop" | "alone", local: () => Local): Runner {
  let wanted = 0;
  let to = "";
  let looped = false;
  const unable = () => Promise.reject(new Error("there is no job system"));
  const done = async () =>
    work === "loop" ? (looped ? wanted : 0) : (await call<{ taken: number }>(`${local().url}/taken`)).taken;
  return {
    async enqueue(count, url = "") {
      [wanted, to, looped] = [count, url, false];
    },
    enqueueSent: unable,
    one: unable,
    async begin() {
      void call(`${local().url}/${work}?count=${wanted}&url=${encodeURIComponent(to)}`).then(() => {
        looped = true;
      });
    },
    rest: async () => {},
    left: async () => (await done()) < wanted,
    ran: async () => ({ times: await done(), distinct: await done(), late: [] }),
    clear: async () => {},
    fill: unable,
    cpu: () => cpuSeconds([findProcess(local().dir)]),
    crash: unable,
    stop: async () => {},
  };
}

function ourRunner(topic: string, local: () => Local, crash: () => Promise<void>): Runner {
  let ticks: NodeJS.Timeout | null = null;
  let ticking: Promise<void> = Promise.resolve();
  const post = (count: number, more: Record<string, unknown>) =>
    call(`${local().url}/enqueue`, { topic, count, ...more });
  const paged = async (count: number, more: Record<string, unknown>) => {
    for (let left = count; left > 0; left -= PAGE) await post(Math.min(left, PAGE), more);
  };
  const tick = () => {
    ticking = fireTick(local().url, Date.now()).catch(() => {});
  };
  return {
    enqueue: (count, url) => paged(count, { url }),
    enqueueSent: (count) => paged(count, { now: true, dueIn: SENT_AHEAD_MS }),
    one: async () => void (await post(1, { now: true })),
    // As the platform does: now, and then once a minute.
    async begin() {
      tick();
      ticks = setInterval(tick, MINUTE);
    },
    async rest() {
      if (ticks !== null) clearInterval(ticks);
      await ticking;
    },
    left: async () => (await call<{ any: 0 | 1 }>(`${local().url}/left?topic=${topic}`)).any === 1,
    ran: () => call<Ran>(`${local().url}/ran`),
    clear: async () => void (await call(`${local().url}/clear`)),
    fill: async (count) => {
      // Half of them in the topic itself.
      for (const name of [topic, "bench.beside"]) await call(`${local().url}/fill?topic=${name}&count=${count / 2}`);
    },
    cpu: () => cpuSeconds([findProcess(local().dir)]),
    crash,
    stop: async () => {},
  };
}

/** How far ahead the items of `enqueueSent` are due, so that none runs while the others are put in, ms. */
const SENT_AHEAD_MS = 20_000;

export interface PeerSetting {
  /** `none` is no job system: what Node does by itself. */
  peer: "graphile-worker" | "pg-boss" | "bullmq" | "none";
  /** What the peer's file takes when it opens, and when it begins to work. */
  open?: Record<string, unknown>;
  work: Record<string, unknown>;
}

/** Starts a peer in a process of its own, on its server. */
export async function startPeer(dir: string, server: Server, { peer, open = {}, work }: PeerSetting): Promise<Runner> {
  const folder = path.join(ROOT, "test/bench/peers");
  await mkdir(dir, { recursive: true });
  let group: Group;
  let url = "";
  const start = async () => {
    const port = await freePort();
    url = `http://127.0.0.1:${port}`;
    const args = ["child.mjs", peer, server.address, String(port), JSON.stringify(open)];
    group = startGroup(process.execPath, args, {
      cwd: folder,
      env: process.env,
      logFile: path.join(dir, `${peer}.log`),
    });
    await answering(group, `${url}/left`, path.join(dir, `${peer}.log`));
  };
  await start();
  const ask = <Body>(name: string, body: unknown = {}) => call<Body>(`${url}/${name}`, body);
  const begin = async () => void (await ask("work", work));
  return {
    enqueue: async (count, to) => void (await ask("enqueue", { count, page: PAGE, url: to })),
    enqueueSent: () => Promise.reject(new Error(`${peer} sends nothing apart`)),
    one: async () => void (await ask("one")),
    begin,
    rest: async () => void (await ask("stop")),
    left: async () => (await ask<{ any: 0 | 1 }>("left")).any === 1,
    ran: () => ask<Ran>("ran"),
    clear: async () => void (await ask("clear")),
    fill: async (count) => void (await ask("fill", { count })),
    cpu: () => cpuSeconds([group.pid, server.pid]),
    async crash() {
      await group.kill();
      await start();
      await begin();
    },
    stop: () => group.stop(),
  };
}

async function answering(group: Group, url: string, logFile: string): Promise<void> {
  let ended: string | null = null;
  group.ended.then((how) => {
    ended = how;
  });
  for (const until = Date.now() + MINUTE / 4; ; await sleep(50)) {
    try {
      await call(url);
      return;
    } catch (error) {
      if (ended !== null || Date.now() > until) {
        await group.stop();
        const log = await readFile(logFile, "utf8").catch(() => "");
        throw new Error(`a peer did not start (${ended ?? error}): ${log.slice(-2_000)}`);
      }
    }
  }
}
