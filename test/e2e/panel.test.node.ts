import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createClient } from "../../src/cli/client.ts";
import { JOB } from "../../src/cli/demo/checkouts.ts";
import { checkAccess, openWindow, startChromium, type Window } from "./browser.node.ts";
import { DEAD, MANY, QUARANTINED, type Scene, startScene } from "./scene.node.ts";

/** The panel in a real Chromium over a real local runtime, as an operator uses it. One story: its tests follow each other. */

const MINUTE = 60_000;
let scene: Scene;
let browser: Browser;
let window: Window;
let page: Page;

beforeAll(async () => {
  [scene, browser] = await Promise.all([startScene(), startChromium()]);
  window = await openWindow(browser, { colorScheme: "light", baseURL: scene.url });
  ({ page } = window);
  page.setDefaultTimeout(20_000);
});
afterAll(async () => {
  await browser?.close();
  await scene?.stop();
});

/** Waits for a heading of the page, so that what follows speaks of it. */
const on = (name: string | RegExp) => page.getByRole("heading", { level: 1, name }).waitFor();
const notice = (text: string | RegExp) => page.locator(".notice.good", { hasText: text }).waitFor();
const button = (name: string | RegExp) => page.getByRole("button", { name });
const link = (name: string | RegExp) => page.getByRole("link", { name });

async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + 30_000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`${what}: not within 30 s`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function signIn(at: Page): Promise<void> {
  await at.goto("/panel/jobs");
  await at.getByLabel("Token").fill(scene.token);
  await at.getByRole("button", { name: "Sign in" }).click();
  await at.getByRole("heading", { level: 1, name: "Jobs" }).waitFor();
}

const publish = (data: string) =>
  createClient(scene.url, scene.token).command<{ eventId: string }>("webhooks.publish", { type: "order.paid", data });

describe("an operator", () => {
  test("is sent to the sign-in, refused with a wrong token, and led back with a right one", async () => {
    await page.goto("/panel/jobs");
    await on("Sign in");
    await checkAccess(page, "the sign-in");
    expect(new URL(page.url()).pathname).toBe("/panel/sign-in");
    await signIn(page);
    expect(new URL(page.url()).pathname).toBe("/panel/jobs");
    expect(await page.evaluate(() => document.cookie)).toBe("");
  });

  test("sees first what needs a person", async () => {
    await page.goto("/panel");
    const needs = page.getByRole("region", { name: "Needs a person" });
    await needs.getByText("1 in quarantine").waitFor();
    await needs.getByText(`${MANY + 1} dead letters of webhooks.deliver`).waitFor();
  });

  test("flips a topic, and sees items go the other way", async () => {
    await page.goto("/panel/topics");
    const card = page.getByRole("region", { name: "webhooks.deliver" });
    await card.getByText("● queue").waitFor();
    const queued = await publish("by the queue");
    await until("the queue has it delivered", () => scene.told.has(queued.eventId));

    await button("Flip to drain: webhooks.deliver").click();
    await notice("webhooks.deliver goes by the drain now");
    await card.getByText("● drain").waitFor();
    const drained = await publish("by the drain");
    // Nothing but a look shows it, and no page was loaded: the live page finds it by itself.
    await card.getByText("1 ready").waitFor();
    expect(scene.told.has(drained.eventId)).toBe(false);
    await scene.tick();
    expect(scene.told.has(drained.eventId)).toBe(true);
    await card.getByText("0 ready").waitFor();

    await button("Flip to queue: webhooks.deliver").click();
    await notice("goes by the queue now");
    const again = await publish("by the queue again");
    await until("the queue has it delivered", () => scene.told.has(again.eventId));
    await page.getByText("History of webhooks.deliver").first().click();
    const history = page.getByRole("region", { name: "History of webhooks.deliver" });
    expect(await history.getByRole("row").count()).toBe(3);
    await history.getByText("http:admin").first().waitFor();
  });

  test("asks why an item is not running, has it run now, and discards another", async () => {
    await page.goto("/panel/topics");
    await button("Pause: merchants.poll").click();
    await notice("merchants.poll is paused");
    const accounts = ["one", "two"].map((id) => ({ id, url: "http://127.0.0.1:1/", everySeconds: 86_400 }));
    await createClient(scene.url, scene.token).command("merchants.add", { accounts });
    for (const [key, what] of [
      ["one", "Retry now"],
      ["two", "Discard"],
    ]) {
      await page.goto("/panel/items?of=merchants.poll");
      await page.getByRole("textbox", { name: "Key" }).fill(key ?? "");
      await button("Show").click();
      await page
        .getByRole("row", { name: key ?? "" })
        .getByText("its topic is paused")
        .waitFor();
      await page.getByRole("rowheader").getByRole("link").click();
      await on("Item");
      if (what === "Retry now") await button(/^Retry now/).click();
      else {
        await link(/^Discard/).click();
        await page.getByText("Nothing brings it back").waitFor();
        await button("Discard the item").click();
      }
      await notice(what === "Discard" ? "is gone" : "is due now");
    }
    await page.goto("/panel/items?of=merchants.poll&key=two");
    await page.getByText("Nothing of merchants.poll has the key two").waitFor();
    await page.goto("/panel/topics");
    await button("Resume: merchants.poll").click();
    await notice("merchants.poll is resumed");
  });

  test("reads the steps of a Workflow instance", async () => {
    await scene.tick();
    await page.goto("/panel/jobs");
    // At which minute this runs is chance: a slot by hand is there at any.
    await button(`Fire now: ${JOB}`).click();
    await on(/Jobs|Refused/);
    await page.goto("/panel/workflows");
    await page.getByRole("rowheader").getByRole("link").last().click();
    await on("Workflow instance");
    await page.getByRole("heading", { level: 3, name: "complete" }).waitFor();
    await page.getByRole("heading", { level: 3, name: "reconcile" }).waitFor();
    await page.getByRole("heading", { level: 3, name: "batch-1" }).waitFor();
    await page.getByText("degraded").first().waitFor();
  });

  test("stops a job, is asked once and told what it does, and resumes it", async () => {
    await page.goto("/panel/jobs");
    await link(`Stop ${JOB}`).click();
    await on("Stop the job");
    await page.getByText("no slot is claimed").waitFor();
    await checkAccess(page, "the page that asks");
    await link("Leave it").click();
    await on("Jobs");
    await link(`Stop ${JOB}`).click();
    await page.getByLabel("Reason").fill("the shop moves <b>today</b>");
    await button("Stop the job").click();
    await notice("is stopped");
    await page.getByText("the shop moves <b>today</b>").waitFor();
    await button(`Resume: ${JOB}`).click();
    await notice("goes on");
    await link(`Stop ${JOB}`).waitFor();
  });

  test("settles what is in quarantine, with a reason", async () => {
    await page.goto(`/panel/jobs/${JOB}`);
    const row = page.getByRole("row", { name: QUARANTINED });
    await row.getByText("the storefront said no").waitFor();
    await row.getByRole("checkbox").check();
    await button("Settle the chosen…").click();
    await on("Settle by hand");
    await page.getByText("settled on your word").waitFor();
    await page.getByLabel("Reason").fill("mended by hand");
    await button("Settle by hand").click();
    await notice("Settled 1 workspace");
    await row.waitFor({ state: "detached" });
    await page.getByText("What people have settled").click();
    await page.getByText("mended by hand").waitFor();
  });

  test("replays a dead letter, and it is delivered", async () => {
    await page.goto("/panel/dead-letters?of=webhooks.deliver&reason=attempts_exhausted");
    await page.getByRole("rowheader").getByRole("link").click();
    await on("Dead letter");
    await page.getByText("the-dead-one").waitFor();
    await button(`Replay: ${DEAD}`).click();
    await notice("It is back as the item");
    await until("it is delivered", () => scene.told.has("the-dead-one"));
  });

  test("replays all of one reason, part by part, and sees how far it has come", async () => {
    await page.goto("/panel/dead-letters?of=webhooks.deliver&reason=many");
    await link("Replay all of this reason…").click();
    await page.getByText("450 dead letters").waitFor();
    await button("Replay all").click();
    await page.getByText(`${MANY} replayed`).waitFor();
    await page.getByText("All that could be put back is back").waitFor();
    expect(await page.getByRole("progressbar").getAttribute("value")).toBe(String(MANY));
    await until("all are delivered", () => scene.told.has("many-0") && scene.told.has(`many-${MANY - 1}`));
  });

  test("adds a schedule with a preview, fires it by hand, and sees it fire by itself", async () => {
    await page.goto("/panel/schedules");
    await page.getByLabel("Name").fill("each-minute");
    await page.getByLabel("Cron").fill("* * * *");
    await page.getByRole("status", { name: "The next five fires" }).locator(".notice.bad").waitFor();
    await page.getByLabel("Cron").fill("* * * * *");
    await page.getByLabel("Time zone").fill("Europe/Prague");
    const fires = page.getByRole("status", { name: "The next five fires" }).getByRole("listitem");
    await until("five fires are shown", async () => (await fires.count()) === 5);
    expect(await fires.first().textContent()).toMatch(/GMT\+[12].*UTC/s);
    await page.getByRole("textbox", { name: "Text", exact: true }).fill("topic pause module=merchants topic=poll");
    await page.getByLabel("Granted actions").fill("schedule:read");
    await button("Add").click();
    // It is added, with a warning: as it stands, it would be refused.
    await page.locator(".notice.bad", { hasText: /each-minute is added.*refused:schedule_write/s }).waitFor();
    await on("Schedule each-minute");
    await link("Remove each-minute").click();
    await page.getByText("fires no more").waitFor();
    await button("Remove the schedule").click();
    await notice("each-minute is removed");

    await page.getByLabel("Name").fill("listing");
    await page.getByLabel("Cron").fill("* * * * *");
    await page.getByRole("textbox", { name: "Text", exact: true }).fill("schedule list");
    await page.getByLabel("Granted actions").fill("schedule:read");
    await button("Add").click();
    await on("Schedule listing");
    await page.getByText("It has not fired yet").waitFor();
    await button("Fire now: listing").click();
    await notice("was fired for");
    const firings = page.getByRole("region", { name: "Firings" });
    await firings.getByText("http:admin").waitFor();
    await scene.tick(Math.ceil(Date.now() / MINUTE) * MINUTE);
    await firings.getByText("service:tick").waitFor();
    await firings.getByRole("link", { name: "run" }).first().click();
    await on("Run");
    await page.getByText("succeeded").first().waitFor();
  });

  test("runs as himself what a schedule was refused, after he has confirmed it", async () => {
    await page.goto("/panel/schedules");
    await page.getByLabel("Name").fill("writing");
    await page.getByLabel("Cron").fill("0 0 1 1 *");
    await page.getByRole("textbox", { name: "Text", exact: true }).fill("topic pause module=merchants topic=poll");
    await button("Add").click();
    await on("Schedule writing");
    await button("Fire now: writing").click();
    await on("Refused");
    await page.getByText("schedule_write").first().waitFor();
    await page.goto("/panel/threads");
    await page.getByRole("link", { name: "writing" }).first().click();
    await button("Run as me…: topic.pause").click();
    await on("Run it as yourself");
    await page.getByText("topic pause").first().waitFor();
    await button("Run it as me").click();
    await notice("It runs as");
    await page.locator(".message.result").waitFor();
    await page.goto("/panel/topics");
    await page.getByRole("region", { name: "merchants.poll" }).getByText("! paused").waitFor();
    await button("Resume: merchants.poll").click();
    await notice("merchants.poll is resumed");
  });

  test("writes in a thread, and its result comes without loading the page", async () => {
    await page.goto("/panel/threads");
    await page.getByLabel("Text").fill("schedule preview '0 3 * * *'");
    await button("Send").click();
    await page.locator(".message.result").waitFor();
    await page.getByLabel("Text").fill("no such words");
    await button("Send").click();
    await page.locator(".message.refusal", { hasText: "no_route" }).waitFor();
  });

  test("signs out, and is nobody", async () => {
    await button("Sign out").click();
    await on("Sign in");
    await page.goto("/panel/topics");
    await on("Sign in");
  });

  test("has met no error on the console and no report of the policy", () => {
    // What was refused on purpose answers its status, which Chromium tells of.
    const expected = /status of 4\d\d .*\/panel\/(?:act|sign-in)/;
    expect(window.complaints.filter((complaint) => !expected.test(complaint))).toEqual([]);
  });
});

const PAGES = [
  "",
  "topics",
  "items",
  "dead-letters",
  "jobs",
  `jobs/${JOB}`,
  "workflows",
  "schedules",
  "schedules/listing",
  "threads",
  "runs",
  "ticks",
];

describe.each(["light", "dark"] as const)("in %s", (colorScheme) => {
  let own: Window;
  beforeAll(async () => {
    own = await openWindow(browser, { colorScheme, baseURL: scene.url });
    await signIn(own.page);
  });

  test.each(PAGES)("/panel/%s has nothing that axe finds serious, and no error", async (path) => {
    await own.page.goto(`/panel/${path}`.replace(/\/$/, ""));
    await own.page.locator("main h1").waitFor();
    await checkAccess(own.page, path);
    expect(own.complaints).toEqual([]);
  });

  test("the pages of one row have nothing that axe finds serious", async () => {
    for (const path of ["threads", "runs", "workflows", "ticks"]) {
      await own.page.goto(`/panel/${path}`);
      await own.page.getByRole("rowheader").getByRole("link").first().click();
      await own.page.waitForURL(new RegExp(`/panel/${path}/.`));
      await checkAccess(own.page, path);
    }
    expect(own.complaints).toEqual([]);
  });
});

test("on a narrow screen no page is wider than the screen", async () => {
  const own = await openWindow(browser, { viewport: { width: 360, height: 740 }, baseURL: scene.url });
  await signIn(own.page);
  for (const path of PAGES) {
    await own.page.goto(`/panel/${path}`.replace(/\/$/, ""));
    const wide = await own.page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    expect(wide, path).toBe(0);
  }
});

test("the keyboard reaches the main part first, and what is typed and chosen outlives the looks of a live page", async () => {
  const own = await openWindow(browser, { baseURL: scene.url });
  await signIn(own.page);
  await own.page.goto("/panel/schedules");
  await own.page.keyboard.press("Tab");
  expect(await own.page.evaluate(() => document.activeElement?.textContent)).toBe("Skip to the main part");
  await own.page.keyboard.press("Enter");
  expect(await own.page.evaluate(() => document.activeElement?.id)).toBe("main");
  await own.page.getByLabel("Name").fill("half-typed");
  const looks = own.page.waitForResponse((answer) => answer.url().endsWith("/panel/schedules"));
  await looks;
  await own.page.waitForResponse((answer) => answer.url().endsWith("/panel/schedules"));
  expect(await own.page.getByLabel("Name").inputValue()).toBe("half-typed");
  expect(await own.page.evaluate(() => document.activeElement?.id)).toBe("add-name");
});
