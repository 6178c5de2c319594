import { setTimeout as sleep } from "node:timers/promises";
import { BOSS_BEST, BULL_BEST, type Contender, type contenders, GRAPHILE_BEST } from "./contenders.node.ts";
import { crash, drain, enqueueRate, type Figures, latency, sentRate } from "./measure.node.ts";
import type { Receiver } from "./receiver.node.ts";
import type { Runner } from "./runner.node.ts";

export interface Sizes {
  enqueued: number;
  sent: number;
  drained: number;
  /** Of those that take a statement or more an item. */
  drainedSlowly: number;
  posted: number;
  beside: number;
  singles: number;
  killed: number;
  /** Longest wait for the items of a killed worker, ms; and for those whose makers say hours. */
  windowMs: number;
  peerWindowMs: number;
}

export interface Case {
  name: string;
  contenders: Contender[];
  /** Measured in one round, whatever the rounds. */
  once?: boolean;
  measure(runner: Runner, receiver: Receiver, contender: Contender): Promise<Figures>;
}

const SIX = 6;
/** After a fill, for what a database still writes of it, ms. */
const REST_MS = 10_000;

async function filled(runner: Runner, count: number): Promise<void> {
  await runner.fill(count);
  await sleep(REST_MS);
}

export function cases({ ours, bare, peer }: ReturnType<typeof contenders>, sizes: Sizes): Case[] {
  const graphile = (setting: string, work: Record<string, unknown>, documented = false) =>
    peer(setting, { peer: "graphile-worker", work }, documented);
  const boss = (
    setting: string,
    work: Record<string, unknown>,
    { open = {}, documented = false }: { open?: Record<string, unknown>; documented?: boolean } = {},
  ) => peer(setting, { peer: "pg-boss", work, open }, documented);
  const bull = (setting: string, work: Record<string, unknown>, documented = false) =>
    peer(setting, { peer: "bullmq", work }, documented);

  const ourQueue = [
    ours("bench.one", "queue, 1 a message"),
    ours("bench.ten", "queue, 10 a message"),
    ours("bench.fifty", "queue, 50 a message"),
    ours("bench.drain", "drain, settled in hundreds"),
  ];
  const best = [
    graphile("batching, 24 at a time", GRAPHILE_BEST, true),
    boss("1,000 a batch, burst", BOSS_BEST, { documented: true }),
    bull("200 at a time", BULL_BEST, true),
  ];
  const posting = [
    ours("bench.post", "queue, 1 a message"),
    ours("bench.post-ten", "queue, 10 a message"),
    graphile("batching, 6 at a time", { ...GRAPHILE_BEST, concurrentJobs: SIX }, true),
    boss("6 workers, 50 a batch, burst", { ...BOSS_BEST, batchSize: 50, localConcurrency: SIX }, { documented: true }),
    bull("6 at a time", { concurrency: SIX }),
  ];
  const slow = new Set(["defaults", "24 at a time", "queue, 1 a message"]);
  const drained = (setting: string) => (slow.has(setting) ? sizes.drainedSlowly : sizes.drained);
  return [
    {
      name: "enqueue",
      contenders: [
        ours("bench.one", "ready, for the tick"),
        graphile("addJobs", {}),
        boss("insert", {}),
        bull("addBulk", {}),
      ],
      measure: (runner) => enqueueRate(runner, sizes.enqueued),
    },
    {
      name: "drain",
      contenders: [
        ...ourQueue,
        bare("the local queue alone, 1 a message", "alone"),
        graphile("defaults", {}),
        graphile("24 at a time", { concurrentJobs: 24, maxPoolSize: 25 }),
        boss("defaults", {}),
        bull("defaults", {}),
        ...best,
      ],
      measure: (runner, _, { setting }) => drain(runner, drained(setting), null),
    },
    {
      name: "latency",
      contenders: [
        ours("bench.one", "sent at once"),
        graphile("defaults", {}),
        graphile("batching, 24 at a time", GRAPHILE_BEST, true),
        boss("defaults", {}),
        boss("notify", {}, { open: { notify: true }, documented: true }),
        bull("defaults", {}),
      ],
      measure: (runner) => latency(runner, sizes.singles),
    },
    {
      name: "post",
      contenders: [
        ...posting,
        bare("workerd's fetch in a loop, 6 at a time", "loop"),
        peer("Node's http.request in a loop, 6 at a time", { peer: "none", work: { concurrency: SIX } }, false),
      ],
      measure: (runner, receiver) => drain(runner, sizes.posted, receiver),
    },
    {
      name: "beside",
      contenders: [...ourQueue, ...best],
      measure: async (runner, _, { setting }) => {
        await filled(runner, sizes.beside);
        return drain(runner, drained(setting), null);
      },
    },
    {
      name: "post-beside",
      contenders: posting,
      measure: async (runner, receiver) => {
        await filled(runner, sizes.beside);
        return drain(runner, sizes.posted, receiver);
      },
    },
    {
      name: "kill",
      once: true,
      contenders: [
        ours("bench.post", "defaults: 300 s sent, 70 s running"),
        ours("bench.short", "46 s sent, 45 s running"),
        graphile("defaults", {}),
        graphile("batching, 24 at a time", GRAPHILE_BEST, true),
        boss(
          "6 workers, 50 a batch, heartbeat of 10 s",
          { ...BOSS_BEST, batchSize: 50, localConcurrency: SIX },
          {
            open: { queue: { heartbeatSeconds: 10 } },
            documented: true,
          },
        ),
        bull("6 at a time", { concurrency: SIX }),
      ],
      measure: (runner, receiver, { system }) =>
        crash(runner, sizes.killed, receiver, system === "duework" ? sizes.windowMs : sizes.peerWindowMs),
    },
    // Last: its items run after their time.
    {
      name: "enqueue-sent",
      contenders: [ours("bench.one", "sent, 1 a message"), ours("bench.ten", "sent, 10 a message")],
      measure: (runner) => sentRate(runner, sizes.sent),
    },
  ];
}
