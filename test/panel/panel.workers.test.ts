import { beforeEach, describe, expect, test } from "vitest";
import { HOUR, MINUTE } from "../../src/core/time.ts";
import { DB } from "../outbox/world.ts";
import { clear, fill, LISTS, PAGES } from "./full.ts";
import { ACCOUNT, type Browser, createStage, ORIGIN, TOKENS } from "./stage.ts";

beforeEach(clear);

const NASTY = `<img src=x onerror=alert(1)>"'&\0</script></textarea>`;

async function signedIn(who: keyof typeof TOKENS = "ann") {
  const stage = createStage();
  const browser = stage.browser();
  expect((await browser.signIn(TOKENS[who])).status).toBe(303);
  return { ...stage, me: browser };
}

/** True when what a browser would read of the page has the nasty text as text and nothing else. */
function escaped(html: string): boolean {
  return !/<img/i.test(html) && !html.includes("\0") && !/onerror=alert\(1\)>"/.test(html);
}

describe("signing in", () => {
  test("every page sends whoever is not signed in to the sign-in, and every form is refused", async () => {
    const browser = createStage().browser();
    for (const path of PAGES(Date.now())) {
      const answer = await browser.get(path);
      expect(answer.status, path).toBe(302);
      expect(answer.headers.get("location"), path).toBe(`/panel/sign-in?next=${encodeURIComponent(path)}`);
    }
    for (const path of ["/panel/act/job.stop", "/panel/ask/job.stop", "/panel/schedules", "/panel/sign-out"]) {
      expect((await browser.post(path, {})).status, path).toBe(401);
    }
    expect((await browser.get("/panel/nothing-of-the-kind")).status).toBe(302);
  });

  test("a token gives a session whose id is nowhere but in its cookie", async () => {
    const { me } = await signedIn();
    const [[name = "", id = ""] = []] = [...me.cookies];
    expect(name).toBe("__Host-duework");
    expect(id).toMatch(/^[\w-]{43}$/);
    const { results } = await DB.prepare("SELECT * FROM sessions").all();
    expect(results).toHaveLength(1);
    expect(JSON.stringify(results)).not.toContain(id);
    expect(JSON.stringify(results)).not.toContain(TOKENS.ann);
    for (const path of LISTS) {
      const { text } = await me.get(path);
      expect(text, path).not.toContain(id);
      expect(text, path).not.toContain(TOKENS.ann);
    }
  });

  test("the cookie is for this site, https and no script; it leads back to the page that was asked for", async () => {
    const browser = createStage().browser();
    const answer = await browser.post("/panel/sign-in", { token: TOKENS.ann, next: "/panel/jobs?state=owed" });
    expect(answer.headers.get("set-cookie")).toMatch(/HttpOnly/);
    expect(answer.headers.get("set-cookie")).toMatch(/Secure/);
    expect(answer.headers.get("set-cookie")).toMatch(/SameSite=Strict/);
    expect(answer.headers.get("set-cookie")).toMatch(/Path=\/(;|$)/);
    expect(answer.headers.get("location")).toBe("/panel/jobs?state=owed");
    const nobody = createStage().browser();
    const asked = await nobody.get("/docs", { headers: { accept: "text/html" } });
    expect(asked.status).toBe(302);
    const led = await nobody.get(asked.headers.get("location") ?? "");
    expect(led.text).toContain('name="next" value="/docs"');
    expect((await browser.post("/panel/sign-in", { token: TOKENS.ann, next: "/docs" })).headers.get("location")).toBe(
      "/docs",
    );
    for (const next of [
      "https://evil.test/",
      "//evil.test/panel",
      "/\\evil.test/docs",
      "//evil.test/docs",
      "/docs\\@evil.test",
      "/docs/../..//evil.test",
      "/docs\n//evil.test",
      "/docs/../api/topics",
      "/docsx",
      "/panel/../api",
      "/panel\\@evil.test",
      "/panels",
    ]) {
      const other = await browser.post("/panel/sign-in", { token: TOKENS.ann, next });
      expect(other.headers.get("location"), next).toBe("/panel");
    }
  });

  test("a session ends twelve hours after its sign-in, and the next sign-in deletes it", async () => {
    const { me, world, browser } = await signedIn();
    world.clock.now += 12 * HOUR - 1;
    expect((await me.get("/panel")).status).toBe(200);
    world.clock.now += 1;
    expect((await me.get("/panel")).status).toBe(302);
    await browser().signIn(TOKENS.ann);
    expect(await DB.prepare("SELECT count(*) AS n FROM sessions").first("n")).toBe(1);
  });

  test("a subject whose token is taken away is signed out, whatever its cookie says", async () => {
    const { me } = await signedIn("bob");
    const without = createStage(["ann"]).browser();
    for (const [name, value] of me.cookies) without.cookies.set(name, value);
    expect((await without.get("/panel")).status).toBe(302);
    expect((await me.get("/panel")).status).toBe(200);
  });

  test("signing out ends the session itself, not only the cookie", async () => {
    const { me } = await signedIn();
    const kept = new Map(me.cookies);
    const csrf = await me.csrf();
    expect((await me.post("/panel/sign-out", { csrf })).status).toBe(303);
    for (const [name, value] of kept) me.cookies.set(name, value);
    expect((await me.get("/panel")).status).toBe(302);
  });

  test("the eleventh try within ten minutes is not looked at, even with the right token; another address is", async () => {
    const { world, browser } = createStage();
    const from = (address: string) => ({ "cf-connecting-ip": address });
    const guesser = browser();
    for (let n = 0; n < 10; n += 1) {
      expect((await guesser.signIn("a guess", from("2001:db8::1"))).status, String(n)).toBe(401);
    }
    const refused = await guesser.signIn(TOKENS.ann, from("2001:db8:0:0:ffff::2"));
    expect(refused.status).toBe(429);
    expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
    expect(Number(refused.headers.get("retry-after"))).toBeLessThanOrEqual(600);
    expect((await browser().signIn(TOKENS.ann, from("192.0.2.7"))).status).toBe(303);
    world.clock.now += 10 * MINUTE;
    expect((await guesser.signIn(TOKENS.ann, from("2001:db8::1"))).status).toBe(303);
  });

  test("tries side by side are counted too", async () => {
    const { browser } = createStage();
    const answers = await Promise.all(Array.from({ length: 15 }, () => browser().signIn("a guess")));
    expect(answers.filter(({ status }) => status === 401)).toHaveLength(10);
    expect(answers.filter(({ status }) => status === 429)).toHaveLength(5);
  });

  test("who signs in rightly is never counted out", async () => {
    const { browser } = createStage();
    for (let n = 0; n < 25; n += 1) expect((await browser().signIn(TOKENS.ann)).status).toBe(303);
  });

  test("another site's page does not sign anybody in", async () => {
    const { browser } = createStage();
    for (const headers of [{ origin: "https://evil.test" }, { origin: ORIGIN, "sec-fetch-site": "cross-site" }]) {
      expect((await browser().post("/panel/sign-in", { token: TOKENS.ann }, headers as never)).status).toBe(403);
    }
    expect((await browser().post("/panel/sign-in", { token: TOKENS.ann }, {})).status).toBe(403);
  });

  test("the session reads the API, and writes nothing there", async () => {
    const { me } = await signedIn();
    expect((await me.get("/api/topics")).status).toBe(200);
    const write = await me.get("/api/commands/topic.pause", {
      method: "POST",
      headers: { "content-type": "application/json", origin: ORIGIN },
      body: JSON.stringify({ module: "shop", topic: "work" }),
    });
    expect(write.status).toBe(401);
  });
});

describe("acts", () => {
  const pause = { module: "shop", topic: "work" };
  const paused = async () => (await DB.prepare("SELECT paused FROM topics").first<number>("paused")) === 1;

  test("a form of the panel's own page runs its command, and the next page says so once", async () => {
    const { me } = await signedIn();
    const answer = await me.act("topic.pause", pause);
    expect(answer.status).toBe(303);
    expect(answer.headers.get("location")).toBe("/panel/topics");
    expect(await paused()).toBe(true);
    expect((await me.get("/panel/topics")).text).toContain("shop.work is paused");
    expect((await me.get("/panel/topics")).text).not.toContain("shop.work is paused");
  });

  test("without its session's CSRF token, or from another site's page, nothing is written", async () => {
    const { me, browser } = await signedIn();
    const other = browser();
    await other.signIn(TOKENS.ann);
    const [csrf, foreign] = [await me.csrf(), await other.csrf()];
    expect(csrf).not.toBe(foreign);
    const args = JSON.stringify(pause);
    const tries: [Record<string, string>, Record<string, string>][] = [
      [{ args }, { origin: ORIGIN }],
      [{ args, csrf: foreign }, { origin: ORIGIN }],
      [{ args, csrf: `${csrf}x` }, { origin: ORIGIN }],
      [{ args, csrf }, { origin: "https://evil.test" }],
      [{ args, csrf }, { origin: "null" }],
      [{ args, csrf }, { "sec-fetch-site": "cross-site" }],
      [{ args, csrf }, { "sec-fetch-site": "same-site" }],
      [{ args, csrf }, {}],
    ];
    for (const [fields, headers] of tries) {
      expect((await me.post("/panel/act/topic.pause", fields, headers)).status).toBe(403);
    }
    expect(await paused()).toBe(false);
  });

  test("what destroys something is asked for first, however its form was sent", async () => {
    const { me, world } = await signedIn();
    await fill(world.clock.now, "x");
    const args = { id: "letter-0" };
    const asked = await me.act("dead-letter.discard", args);
    expect(asked.status).toBe(200);
    expect(asked.text).toContain("Nothing brings it back");
    const count = () => DB.prepare("SELECT count(*) AS n FROM dead_letters WHERE id = 'letter-0'").first("n");
    expect(await count()).toBe(1);
    expect((await me.act("dead-letter.discard", args, { asked: "yes" })).status).toBe(303);
    expect(await count()).toBe(0);
  });

  test("a command without a button here is none of the panel's, and a refusal keeps its code", async () => {
    const { me } = await signedIn();
    expect((await me.act("item.enqueue", {})).status).toBe(404);
    expect((await me.act("plan.approve", {})).status).toBe(404);
    const conflict = await me.act("topic.pause", { ...pause, expectedVersion: 7 });
    expect(conflict.status).toBe(409);
    expect(conflict.text).toContain("version_conflict");
    expect((await me.act("topic.pause", { module: "shop", topic: NASTY })).status).toBe(404);
    expect((await me.post("/panel/act/topic.pause", { csrf: await me.csrf(), args: "[]" })).status).toBe(400);
    expect((await me.post("/panel/act/topic.pause", { csrf: "x".repeat(70_000) })).status).toBe(413);
  });

  test("who lacks the grant sees no button, gets no page, and his form is refused", async () => {
    const { me, world } = await signedIn("bob");
    await fill(world.clock.now, "x");
    for (const path of ["/panel/topics", "/panel/jobs", "/panel/jobs/sweep"]) {
      const { status, text } = await me.get(path);
      expect(status, path).toBe(200);
      expect(text, path).not.toMatch(/action="\/panel\/act\/|href="\/panel\/ask\//);
    }
    for (const path of ["/panel/ticks", "/panel/items", "/panel/threads", "/panel/schedules", "/panel/runs/run-0"]) {
      const { status, text } = await me.get(path);
      expect(status, path).toBe(403);
      expect(text, path).toContain("This needs the grant");
    }
    expect((await me.act("topic.pause", pause)).status).toBe(403);
    expect((await me.act("job.stop", { id: "sweep", reason: "x" }, { asked: "yes" })).status).toBe(403);
    expect((await me.get("/panel/ask/job.stop?args=%7B%22id%22%3A%22sweep%22%7D")).status).toBe(403);
    const csrf = await me.csrf();
    expect((await me.post("/panel/schedules", { csrf, name: "x", cron: "* * * * *", text: "x" })).status).toBe(403);
    const part = { csrf, args: JSON.stringify(pause) };
    expect((await me.post("/panel/dead-letters/replay-all", part)).status).toBe(403);
    const { text } = await me.get("/panel");
    expect(text).toContain("shop.work");
    expect(text).not.toMatch(/href="\/panel\/(?:items|dead-letters|threads|ticks|runs|schedules)/);
  });

  test("a schedule is added with what was typed, and what is refused comes back with it", async () => {
    const { me } = await signedIn();
    const csrf = await me.csrf();
    const typed = {
      csrf,
      name: "nightly",
      cron: "0 3 * *",
      timeZone: "Europe/Prague",
      text: NASTY,
      channel: "inbox:x",
    };
    const refused = await me.post("/panel/schedules", typed);
    expect(refused.status).toBe(400);
    expect(refused.text).toContain('value="nightly"');
    expect(escaped(refused.text)).toBe(true);
    const added = await me.post("/panel/schedules", {
      ...typed,
      cron: "0 3 * * *",
      text: "schedule list",
      actions: "schedule:read",
    });
    expect(added.headers.get("location")).toBe("/panel/schedules/nightly");
    const row = await DB.prepare("SELECT grants, time_zone FROM schedules WHERE name = 'nightly'").first();
    expect(row).toEqual({
      time_zone: "Europe/Prague",
      grants: '{"actions":["schedule:read"],"channels":[],"scopes":[]}',
    });
  });

  test("the preview shows five fires in local time and in UTC, or why there are none", async () => {
    const { me } = await signedIn();
    const good = await me.get("/panel/schedules/preview?cron=0+3+*+*+*&timeZone=Europe%2FPrague");
    expect(good.text.match(/<time /g)).toHaveLength(5);
    expect(good.text).toMatch(/03:00 GMT\+[12]/);
    const bad = await me.get(`/panel/schedules/preview?cron=${encodeURIComponent(NASTY)}`);
    expect(bad.text).toContain("notice bad");
    expect(escaped(bad.text)).toBe(true);
  });
});

describe("pages", () => {
  const strict = (browser: Browser) => async (path: string) => {
    const answer = await browser.get(path);
    expect(answer.status, path).toBe(200);
    expect(answer.headers.get("content-security-policy"), path).toBe(
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    );
    expect(answer.headers.get("cache-control"), path).toBe("no-store");
    // What the policy would refuse is not there.
    expect(answer.text, path).not.toMatch(/<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+="/);
    expect(answer.text.startsWith("<!DOCTYPE html>"), path).toBe(true);
    return answer.text;
  };

  test("each is there while the database is empty, and says what to do", async () => {
    const { me } = await signedIn();
    for (const path of LISTS) {
      const text = await strict(me)(path);
      expect(text, path).toContain('<main id="main"');
      if (path !== "/panel/topics" && path !== "/panel/jobs") expect(text, path).toContain('class="empty"');
    }
  });

  test("each shows rows of every table", async () => {
    const { me, world } = await signedIn();
    await fill(world.clock.now, "stored text");
    for (const path of PAGES(world.clock.now)) await strict(me)(path);
    const overview = await strict(me)("/panel");
    for (const need of ["The job sweep is stopped", "1 in quarantine", "A tick died", "dead letters of shop.work"]) {
      expect(overview).toContain(need);
    }
    expect(overview).toContain("runs of stored text were lost");
    const { items } = JSON.parse((await me.get("/api/needs")).text) as { items: { what: string }[] };
    expect(items.length).toBeGreaterThan(7);
    for (const { what } of items) expect(overview).toContain(what);
    const instance = `checkout-expiry/expiry-${Math.floor(world.clock.now / MINUTE)}-1`;
    const dashboard = `https://dash.cloudflare.com/${ACCOUNT}/workers/workflows/${instance.replace("/", "/instance/")}`;
    expect(await strict(me)(`/panel/workflows/${instance}`)).toContain(`href="${dashboard}"`);
    expect(await strict(me)("/panel/")).toContain("Needs a person");
  });

  test("whatever is stored is text: markup, quotes, NUL and a megabyte in every field", async () => {
    const { me, world } = await signedIn();
    const long = NASTY + "y".repeat(1_000_000) + NASTY;
    await fill(world.clock.now, long, NASTY);
    for (const path of PAGES(world.clock.now)) {
      const text = await strict(me)(path);
      expect(escaped(text), path).toBe(true);
    }
    const id = encodeURIComponent(NASTY);
    for (const path of [`/panel/dead-letters/${id}`, `/panel/schedules/${id}`]) {
      expect(escaped(await strict(me)(path)), path).toBe(true);
    }
    for (const path of ["/panel", "/panel/dead-letters", "/panel/items", "/panel/schedules", "/panel/runs"]) {
      expect((await strict(me)(path)).length, path).toBeLessThan(200_000);
    }
    expect(await strict(me)("/panel/dead-letters/letter-1")).toContain("y".repeat(1_000_000));
  });

  test("whatever an address says is text, and what it asks for wrongly is refused", async () => {
    const { me } = await signedIn();
    const nasty = encodeURIComponent(NASTY);
    for (const path of [
      `/panel/items?of=${nasty}`,
      `/panel/items?key=${nasty}`,
      `/panel/items?state=${nasty}`,
      `/panel/items?cursor=${nasty}`,
      `/panel/items/${nasty}`,
      `/panel/dead-letters?reason=${nasty}`,
      `/panel/dead-letters?cursor=${nasty}`,
      `/panel/dead-letters/${nasty}`,
      `/panel/dead-letters/replay-all?args=${nasty}`,
      `/panel/jobs/${nasty}`,
      `/panel/jobs/sweep?state=${nasty}&cursor=${nasty}&slots=${nasty}`,
      `/panel/jobs/sweep/slots/${nasty}`,
      `/panel/workflows?cursor=${nasty}`,
      `/panel/workflows/${nasty}/${nasty}`,
      `/panel/schedules/${nasty}`,
      `/panel/threads/${nasty}`,
      `/panel/threads?cursor=${nasty}`,
      `/panel/runs?cursor=${nasty}`,
      `/panel/ticks?cursor=${nasty}`,
      `/panel/ticks/${nasty}`,
      `/panel/ask/${nasty}`,
      `/panel/ask/job.stop?args=${nasty}`,
      `/panel/${nasty}`,
    ]) {
      const { status, text } = await me.get(path);
      expect(status, path).toBeLessThan(500);
      expect(escaped(text), path).toBe(true);
    }
  });

  test("the style, the script and the icon are served beside the bundle, and no other file", async () => {
    const browser = createStage().browser();
    for (const name of ["panel.css", "panel.js", "panel.svg"]) {
      expect((await browser.get(`/panel/assets/${name}`)).status, name).toBe(200);
    }
    for (const name of ["swagger-ui.css", "..%2Fdocs%2Fdocs.js", "nothing"]) {
      expect((await browser.get(`/panel/assets/${name}`)).status, name).toBe(404);
    }
  });
});
