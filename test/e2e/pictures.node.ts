import { spawn } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { createInterface } from "node:readline";
import type { Page } from "playwright-core";
import { writeAssets } from "../../src/cli/assets.ts";
import { createClient } from "../../src/cli/client.ts";
import { JOB } from "../../src/cli/demo/checkouts.ts";
import { openWindow, startChromium } from "./browser.node.ts";
import { indexed } from "./indexed-png.node.ts";

/**
 * `npm run pictures`: the panel over the demo's data, as the pictures of `docs/pictures`. The same pages of the same work
 * each time; only instants, and what is counted of them, differ.
 */

const ROOT = path.resolve(import.meta.dirname, "../..");
const FOLDER = path.join(ROOT, "docs/pictures");
/** Of one picture, bytes: they are in the repository for good. */
const MOST_BYTES = 60 * 1024;
const WIDTH = 1_200;
const DEMO = ["--items", "200", "--checkouts", "100", "--keep", "--json"];
/** What the demo says once its work is done and it stays. */
const RUNNING = /the panel is at (\S+)\/panel, its token in (\S+)\. /;

type Scheme = "light" | "dark";

/** Which page, how tall, in which colours. */
const PICTURES: readonly (readonly [name: string, height: number, schemes: readonly Scheme[], open: Open])[] = [
  ["overview", 760, ["light", "dark"], (page) => page.goto("/panel")],
  ["topics", 440, ["light"], (page) => page.goto("/panel/topics")],
  ["schedules", 560, ["light"], (page) => page.goto("/panel/schedules")],
  ["workflow", 720, ["light", "dark"], openSweep],
];
type Open = (page: Page) => Promise<unknown>;

/** The steps of the latest sweep. */
async function openSweep(page: Page): Promise<void> {
  await page.goto("/panel/workflows");
  await page.getByRole("row", { name: "checkout-expiry" }).first().getByRole("rowheader").getByRole("link").click();
  await page.getByRole("heading", { level: 1, name: "Workflow instance" }).waitFor();
}

/** Something that waits for a person, as an operator meets it. */
async function bringTrouble(url: string, token: string): Promise<void> {
  const client = createClient(url, token);
  await client.command("job.stop", { id: JOB, reason: "the storefront is being moved" });
  await client.command("topic.pause", { module: "merchants", topic: "poll" });
}

async function signIn(page: Page, token: string): Promise<void> {
  await page.goto("/panel");
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
}

/** @throws Error when a picture is too large */
async function takeAll(url: string, token: string): Promise<void> {
  const browser = await startChromium();
  try {
    for (const colorScheme of ["light", "dark"] as const) {
      const { page } = await openWindow(browser, {
        baseURL: url,
        colorScheme,
        viewport: { width: WIDTH, height: 800 },
      });
      await signIn(page, token);
      for (const [name, height, schemes, open] of PICTURES) {
        if (!schemes.includes(colorScheme)) continue;
        await page.setViewportSize({ width: WIDTH, height });
        await open(page);
        const file = path.join(FOLDER, colorScheme === "light" ? `${name}.png` : `${name}-${colorScheme}.png`);
        const picture = await indexed(browser, await page.screenshot());
        await writeFile(file, picture);
        console.log(`${path.relative(ROOT, file)}  ${Math.ceil(picture.length / 1024)} KiB`);
        if (picture.length > MOST_BYTES)
          throw new Error(`${name} is larger than ${MOST_BYTES} bytes: make it less tall`);
      }
    }
  } finally {
    await browser.close();
  }
}

await writeAssets();
await mkdir(FOLDER, { recursive: true });
const demo = spawn(process.execPath, [path.join(ROOT, "src/cli/demo.ts"), ...DEMO], {
  stdio: ["ignore", "ignore", "pipe"],
});
const ended = new Promise<void>((resolve) => demo.on("exit", () => resolve()));
let taken = false;
try {
  for await (const line of createInterface({ input: demo.stderr })) {
    const [, url, tokenFile] = RUNNING.exec(line) ?? [];
    if (url === undefined || tokenFile === undefined) continue;
    const token = (await readFile(tokenFile, "utf8")).trim();
    await bringTrouble(url, token);
    await takeAll(url, token);
    taken = true;
    break;
  }
  if (!taken) throw new Error("the demo ended before its panel could be seen: npm run demo says why");
} finally {
  demo.stderr.resume();
  demo.kill("SIGINT");
  await ended;
}
