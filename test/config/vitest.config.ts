import path from "node:path";
import { cloudflareTest, readD1Migrations } from "@cloudflare/vitest-plugin";
import { defineConfig } from "vitest/config";
import { writeAssets } from "../../src/cli/assets.ts";

const root = path.resolve(import.meta.dirname, "../..");

/**
 * Two projects. `node` holds the pure tests and those that drive a runtime from outside; `workers` runs inside the
 * local runtime with real D1, Queues and Workflows.
 */
export default defineConfig(async () => {
  await writeAssets();
  return {
    root,
    test: {
      projects: [
        {
          root,
          test: { name: "node", include: ["test/**/*.node.test.ts"], testTimeout: 120_000, hookTimeout: 120_000 },
        },
        {
          root,
          plugins: [
            cloudflareTest({
              wrangler: { configPath: path.join(root, "wrangler.jsonc") },
              miniflare: {
                bindings: {
                  TEST_MIGRATIONS: await readD1Migrations(path.join(root, "src/db/migrations")),
                  // Set here so that a developer's own .dev.vars never decides a test.
                  DUEWORK_TOKENS: "[]",
                  STOREFRONT_URL: "https://storefront.test/revalidate",
                  STOREFRONT_TOKEN: "a token of the tests",
                  SUPABASE_URL: "",
                  SUPABASE_SERVICE_KEY: "",
                  SLACK_BOT_TOKEN: "",
                  SLACK_SIGNING_SECRET: "",
                  WEBHOOK_CHANNELS: "",
                },
              },
            }),
          ],
          test: {
            name: "workers",
            include: ["test/**/*.workers.test.ts"],
            setupFiles: [path.join(root, "test/config/setup.ts")],
            testTimeout: 60_000,
          },
        },
      ],
    },
  };
});
