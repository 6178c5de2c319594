import path from "node:path";
import { defineConfig } from "vitest/config";
import { writeAssets } from "../../src/cli/assets.ts";

/** What needs a real Chromium: apart from `npm test`, which needs npm packages only. */
export default defineConfig(async () => {
  await writeAssets();
  return {
    root: path.resolve(import.meta.dirname, "../.."),
    test: {
      name: "e2e",
      include: ["test/e2e/**/*.test.node.ts"],
      pool: "forks",
      testTimeout: 120_000,
      hookTimeout: 180_000,
    },
  };
});
