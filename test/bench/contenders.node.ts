import path from "node:path";
import { type PeerSetting, type Runner, type startOurs, startPeer } from "./runner.node.ts";
import type { Server } from "./servers.node.ts";

/** A job system under one setting. */
export interface Contender {
  system: string;
  setting: string;
  /** The page its setting is from; null: its defaults, or our own. */
  source: string | null;
  open(): Promise<Runner>;
}

export interface Started {
  dir: string;
  ours: Awaited<ReturnType<typeof startOurs>>;
  postgres: Server;
  redis: Server;
}

export const PAGES = {
  "graphile-worker": "https://worker.graphile.org/docs/performance",
  "pg-boss": "https://timgit.github.io/pg-boss/#/./api/workers",
  bullmq: "https://docs.bullmq.io/guide/parallelism-and-concurrency",
  none: null,
} as const;

/** The system of a contender that is none. */
export const NONE = "no job system";

/** graphile-worker's own settings for its published figures. */
export const GRAPHILE_BEST = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
/** pg-boss has no page of settings for speed: its workers page says what fetches many, at once and again. */
export const BOSS_BEST = {
  batchSize: 1_000,
  burstWhenBatchFull: true,
  localConcurrency: 2,
  pollingIntervalSeconds: 0.5,
};
/** BullMQ's page gives 100 to 300 for jobs that wait. */
export const BULL_BEST = { concurrency: 200 };

export function contenders({ dir, ours, postgres, redis }: Started) {
  return {
    ours: (topic: string, setting: string): Contender => ({
      system: "duework",
      setting,
      source: null,
      open: async () => ours.runner(topic),
    }),
    bare: (setting: string, work: "loop" | "alone"): Contender => ({
      system: NONE,
      setting,
      source: null,
      open: async () => ours.bare(work),
    }),
    peer: (setting: string, peer: PeerSetting, documented: boolean): Contender => ({
      system: peer.peer === "none" ? NONE : peer.peer,
      setting,
      source: documented ? PAGES[peer.peer] : null,
      open: () => startPeer(path.join(dir, "peers"), peer.peer === "bullmq" ? redis : postgres, peer),
    }),
  };
}
