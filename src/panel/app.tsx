import { type Context, Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import { errorText } from "../core/text.ts";
import { act, ask, type Fields, nothing, refused } from "./act.tsx";
import { cameByAccess, carriesToken, HEADERS, isOwn, signedIn } from "./guard.ts";
import { asPart, render, renderOutside } from "./layout.tsx";
import { takeNotice } from "./notices.ts";
import { deadLetterPage, deadLettersPage, replayAllPage, replayPart } from "./pages/dead-letters.tsx";
import { itemPage, itemsPage } from "./pages/items.tsx";
import { jobPage, jobsPage } from "./pages/jobs.tsx";
import { overviewPage } from "./pages/overview.tsx";
import { runPage, runsPage } from "./pages/runs.tsx";
import { addSchedule, previewPart, schedulePage, schedulesPage } from "./pages/schedules.tsx";
import { slotPage } from "./pages/slots.tsx";
import { threadPage, threadsPage } from "./pages/threads.tsx";
import { tickPage, ticksPage } from "./pages/ticks.tsx";
import { topicsPage } from "./pages/topics.tsx";
import { workflowPage, workflowsPage } from "./pages/workflows.tsx";
import { csrfOf } from "./sessions.ts";
import { showSignIn, signIn, signOut } from "./sign-in.tsx";
import { type Content, canRead, type Env, type Page, type PanelDeps, type Visit } from "./visit.ts";

/** Largest form, bytes: a text of a dispatch is 8 KiB. */
const FORM_BYTES = 64 * 1024;
/** What the folder of assets holds for the panel. */
const ASSETS = ["panel.css", "panel.js", "panel.svg"];

/** Every page, and the grant that reading it needs; null = it looks at the grants itself. */
const ROUTES: readonly (readonly [path: string, grant: string | null, page: Page])[] = [
  ["/", null, overviewPage],
  ["/topics", "topic:read", topicsPage],
  ["/items", "item:read", itemsPage],
  ["/items/:id", "item:read", itemPage],
  ["/dead-letters", "item:read", deadLettersPage],
  ["/dead-letters/replay-all", "item:read", replayAllPage],
  ["/dead-letters/:id", "item:read", deadLetterPage],
  ["/jobs", "job:read", jobsPage],
  ["/jobs/:id", "job:read", jobPage],
  ["/jobs/:id/slots/:slot", "job:read", slotPage],
  ["/workflows", "workflow:read", workflowsPage],
  ["/workflows/:workflow/:id", "workflow:read", workflowPage],
  ["/schedules", "schedule:read", schedulesPage],
  ["/schedules/:name", "schedule:read", schedulePage],
  ["/threads", "thread:read", threadsPage],
  ["/threads/:id", "thread:read", threadPage],
  ["/runs", "run:read", runsPage],
  ["/runs/:id", "run:read", runPage],
  ["/ticks", "tick:read", ticksPage],
  ["/ticks/:id", "tick:read", tickPage],
];

/** The operator's pages, under `/panel`. They have no rule of their own: every act is a command of the registry. */
export function createPanel(deps: PanelDeps): Hono<Env> {
  const app = new Hono<Env>({ strict: false }).basePath("/panel");
  app.use(async (c, next) => {
    for (const [name, value] of Object.entries(HEADERS)) c.header(name, value);
    await next();
  });
  app.onError((error, c) => {
    deps.runtime?.ports.log({ event: "request_failed", level: "error", error: errorText(error) });
    for (const [name, value] of Object.entries(HEADERS)) c.header(name, value);
    return c.html(renderOutside("It failed", <p>The page could not be served. The log says why.</p>), 500);
  });
  app.get("/assets/:name", (c) => asset(c, deps));
  app.use(async (c, next) => {
    const { runtime, tokens, problems } = deps;
    if (runtime !== null && tokens !== null) return next();
    return c.html(renderOutside("Misconfigured", <Problems lacking={problems} />), 503);
  });
  app.use(
    bodyLimit({
      maxSize: FORM_BYTES,
      onError: (c) => c.html(renderOutside("Too large", <p>{`A form is at most ${FORM_BYTES} bytes.`}</p>), 413),
    }),
  );
  app.get("/sign-in", (c) => showSignIn(c));
  app.post("/sign-in", async (c) => {
    const { tokens, runtime } = deps;
    if (tokens === null || runtime === null) return c.notFound();
    return signIn(c, runtime, tokens, await fieldsOf(c));
  });
  app.use(async (c, next) => enter(c, deps, next));
  serveActs(app);
  for (const [path, grant, page] of ROUTES) app.get(path, async (c) => show(c, await guarded(c, grant, page)));
  app.notFound((c) => {
    const visit = c.get("visit") as Visit | undefined;
    if (visit !== undefined) return show(c, nothing());
    return c.html(renderOutside("Nothing here", <a href="/panel">Go to the overview</a>), 404);
  });
  return app;
}

/** What changes something. */
function serveActs(app: Hono<Env>): void {
  app.post("/sign-out", (c) => {
    const { db } = c.get("visit");
    return signOut(c, db, c.get("session"));
  });
  app.get("/ask/:command", async (c) => show(c, await ask(c.get("visit"), c.req.param("command"), queryOf(c))));
  app.post("/ask/:command", async (c) => {
    return show(c, await ask(c.get("visit"), c.req.param("command"), await fieldsOf(c)));
  });
  app.post("/act/:command", async (c) => {
    return answer(c, await act(c.get("visit"), c, c.req.param("command"), await fieldsOf(c)));
  });
  app.post("/schedules", async (c) => answer(c, await addSchedule(c.get("visit"), c, await fieldsOf(c))));
  app.get("/schedules/preview", async (c) => {
    const part = await previewPart(c.get("visit"), c);
    return c.html(asPart(part));
  });
  app.post("/dead-letters/replay-all", async (c) => {
    return answer(c, await replayPart(c.get("visit"), c, await fieldsOf(c)));
  });
}

/** Lets in whoever is signed in; a write also has to come from a page of his session. */
async function enter(c: Context<Env>, deps: PanelDeps, next: () => Promise<void>): Promise<Response | undefined> {
  const { runtime, tokens } = deps;
  if (runtime === null || tokens === null) return c.notFound() as Response;
  const now = deps.clock();
  const url = new URL(c.req.url);
  const known = (await signedIn(c, runtime.db, tokens, now)) ?? (await cameByAccess(c, deps.access, tokens));
  const reads = c.req.method === "GET" || c.req.method === "HEAD";
  if (known !== null && "status" in known) {
    const { status, detail } = known;
    runtime.ports.log({ event: "sign_in_refused", level: "warn", reason: detail });
    return c.html(renderOutside("Not let in", <NotLetIn detail={detail} />), status);
  }
  if (known === null) {
    if (reads) return c.redirect(`/panel/sign-in?next=${encodeURIComponent(url.pathname + url.search)}`, 302);
    const signedOut = <a href="/panel/sign-in">Sign in, and do it again</a>;
    return c.html(renderOutside("You are signed out", signedOut), 401);
  }
  if (!reads) {
    const own = isOwn(c) && (await carriesToken(known.session, (await fieldsOf(c)).csrf));
    if (!own) {
      const again = <a href="/panel">Go to the overview, and do it again from there</a>;
      return c.html(renderOutside("Refused: this did not come from the panel", again), 403);
    }
  }
  c.set("session", known.session);
  c.set("visit", {
    deps,
    runtime,
    db: runtime.db,
    now,
    actor: known.actor,
    csrf: await csrfOf(known.session),
    url,
    notice: reads ? takeNotice(c) : null,
  });
  await next();
  return undefined;
}

async function guarded(c: Context<Env>, grant: string | null, page: Page): Promise<Content> {
  const visit = c.get("visit");
  if (grant !== null && !canRead(visit, grant)) {
    const content = refused(
      { ok: false, code: "not_granted", field: grant, message: `This needs the grant ${grant}.` },
      null,
    );
    return { ...content, title: "Not granted" };
  }
  return page(visit, c);
}

function show(c: Context<Env>, content: Content): Response | Promise<Response> {
  return c.html(render(content, c.get("visit")), content.status ?? 200);
}

function answer(c: Context<Env>, content: Content | Response): Response | Promise<Response> {
  return content instanceof Response ? content : show(c, content);
}

async function fieldsOf(c: Context): Promise<Fields> {
  return c.req.parseBody({ all: true }).catch(() => ({}));
}

/** A query's parameters; those that are given more than once as a list. */
function queryOf(c: Context): Fields {
  return Object.fromEntries(
    Object.entries(c.req.queries()).map(([name, all]) => [name, all.length > 1 ? all : all[0]]),
  );
}

async function asset(c: Context, { assets }: PanelDeps): Promise<Response> {
  const name = c.req.param("name") ?? "";
  if (assets === null || !ASSETS.includes(name)) return c.text("there is nothing here", 404);
  const url = new URL(`/${name}`, c.req.url);
  const found = await assets.fetch(new Request(url, { headers: c.req.raw.headers }));
  const headers = new Headers(found.headers);
  headers.set("x-content-type-options", "nosniff");
  return new Response(found.body, { status: found.status, headers });
}

function NotLetIn({ detail }: { detail: string }) {
  return (
    <>
      <p class="notice bad" role="alert">
        {`You come by Cloudflare Access, and ${detail}.`}
      </p>
      <p>
        <a href="/panel/sign-in">Sign in with a token</a>
      </p>
    </>
  );
}

function Problems({ lacking }: { lacking: PanelDeps["problems"] }) {
  return (
    <ul>
      {lacking.map(({ setting, detail }) => (
        <li>
          <code>{setting}</code>: {detail}
        </li>
      ))}
    </ul>
  );
}
