import path from "node:path";
import { defineConfig } from "vitest/config";

/** What needs Prometheus's `promtool`: apart from `npm test`, which needs npm packages only. */
export default defineConfig({
  root: path.resolve(import.meta.dirname, "../.."),
  test: {
    name: "metrics",
    include: ["test/metrics/**/*.test.node.ts"],
    pool: "forks",
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
});
