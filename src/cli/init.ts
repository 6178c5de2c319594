import { access, mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { parseArgs } from "node:util";
import { EXIT } from "./flags.ts";
import { type DevSecrets, ensureDevSecrets } from "./secrets.ts";

export const INIT_HELP = `duework init [--write]: what a Worker that imports duework needs.

  --write   writes wrangler.jsonc, src/worker.ts, .gitignore and an admin's token for this machine, each only where
            there is none`;

/** `wrangler.jsonc` of a Worker that imports the package. A test holds it to this repository's own. */
export const CONFIG = `{
  "$schema": "node_modules/wrangler/config-schema.json",
  "name": "my-worker",
  "main": "src/worker.ts",
  "compatibility_date": "2026-08-01",
  "compatibility_flags": ["nodejs_compat"],
  // The tick: everything that is due at a minute is found by it.
  "triggers": { "crons": ["* * * * *"] },
  "d1_databases": [
    {
      "binding": "DB",
      "database_name": "duework",
      // Enough for this machine. For a deployment: what "wrangler d1 create" prints.
      "database_id": "00000000-0000-0000-0000-000000000000",
      "migrations_dir": "node_modules/duework/src/db/migrations"
    }
  ],
  "queues": {
    "producers": [{ "binding": "ITEMS", "queue": "duework-items" }],
    "consumers": [
      // A timeout of 0 starts an item at once; a full batch still carries 100.
      {
        "queue": "duework-items",
        "max_batch_size": 100,
        "max_batch_timeout": 0,
        "max_retries": 10,
        "dead_letter_queue": "duework-items-dead"
      },
      { "queue": "duework-items-dead", "max_batch_size": 100, "max_batch_timeout": 5, "max_retries": 3 }
    ]
  },
  // One instance a run of a dispatched command: without it no text is dispatched, and no stored schedule fires.
  "workflows": [{ "binding": "RUN", "name": "run", "class_name": "RunCommand" }],
  // What the panel and /docs are made of: the Worker decides who gets it.
  "assets": { "directory": "node_modules/duework/dist/assets", "binding": "ASSETS", "run_worker_first": true },
  "minify": true,
  "upload_source_maps": true,
  "observability": { "enabled": true }
}
`;

/** The least Worker that does something. */
export const WORKER = `import { createWorker, defineModule, topic, type WorkerOptions } from "duework";
import { runWorkflow } from "duework/run";
import * as v from "valibot";

const greet = topic("hello.greet", {
  schema: v.object({ name: v.string() }),
  // Runs at least once: item.id is the key that makes twice the same as once.
  async handle(item, ctx) {
    ctx.log("greeted", { item: item.id, name: item.payload.name });
  },
});

const app: WorkerOptions<object> = {
  modules: [defineModule("hello", { topics: [greet] })],
  // A request to any path enqueues one item, which starts at once. /healthz and /api are the runtime's own.
  fetch: async (_request, ctx) =>
    Response.json(await ctx.outbox.enqueueNow(greet, [{ payload: { name: "world" } }])),
};

/** The runs of dispatched commands, over the same app. */
export const RunCommand = runWorkflow(app);

export default createWorker(app);
`;

/** What a repository keeps to itself. */
const IGNORED = "node_modules/\n.wrangler/\n.dev.vars\n.dev.token\n";

const SECRETS: Record<DevSecrets, string> = {
  made: "wrote .dev.vars and .dev.token: an admin's token for this machine, as its hash and in the clear\n",
  kept: "left .dev.vars and .dev.token as they are\n",
  own: "left .dev.vars as it is: its tokens are your own\n",
};

const COMMANDS = `npm install duework valibot   # what of it is not there yet
npm install --save-dev node@24 wrangler@4.156.2 @cloudflare/workers-types
npx wrangler d1 migrations apply DB --local   # then: npx wrangler dev, and a request to it
npx wrangler d1 create duework
npx wrangler queues create duework-items
npx wrangler queues create duework-items-dead
npx wrangler d1 migrations apply DB --remote
npx wrangler secret put DUEWORK_TOKENS
npx wrangler deploy
`;

/** Any of these is a Worker's configuration; beside one, another would be ignored or refused. */
const CONFIG_FILES = ["wrangler.jsonc", "wrangler.json", "wrangler.toml"];

/** `duework init`. Answers the exit code. */
export async function init(argv: readonly string[], folder: string, say: (text: string) => void): Promise<number> {
  const options = { write: { type: "boolean" }, help: { type: "boolean", short: "h" } } as const;
  const { values } = parseArgs({ args: [...argv], options });
  if (values.help) say(`${INIT_HELP}\n`);
  else if (values.write) await write(folder, say);
  else say(section("wrangler.jsonc", CONFIG) + section("src/worker.ts", WORKER) + section("commands", COMMANDS));
  return EXIT.done;
}

const section = (title: string, content: string) => `== ${title}\n${content}\n`;

async function write(folder: string, say: (text: string) => void): Promise<void> {
  const found = await firstThere(folder, CONFIG_FILES);
  if (found === null) {
    await writeFile(path.join(folder, "wrangler.jsonc"), CONFIG, { flag: "wx" });
    say("wrote wrangler.jsonc\n");
  } else say(`left ${found} as it is: \`duework init\` prints what it needs\n`);

  const worker = "src/worker.ts";
  if ((await firstThere(folder, [worker])) === null) {
    await mkdir(path.join(folder, "src"), { recursive: true });
    await writeFile(path.join(folder, worker), WORKER, { flag: "wx" });
    say(`wrote ${worker}\n`);
  } else say(`left ${worker} as it is\n`);

  if ((await firstThere(folder, [".gitignore"])) === null) {
    await writeFile(path.join(folder, ".gitignore"), IGNORED, { flag: "wx" });
    say("wrote .gitignore\n");
  }
  say(SECRETS[await ensureDevSecrets(folder)]);
  say(`\nNext:\n\n${COMMANDS}`);
}

async function firstThere(folder: string, files: readonly string[]): Promise<string | null> {
  for (const file of files) {
    const there = await access(path.join(folder, file)).then(
      () => true,
      () => false,
    );
    if (there) return file;
  }
  return null;
}
