import type { Child } from "hono/jsx";
import { type Content, canRead, type Notice, type Visit } from "./visit.ts";

/** The frame of every page: head, navigation, notice, main part. */

/** Seconds between two looks of a live page: a tick is a minute, and an item takes less than a second. */
const LOOK_SECONDS = 3;
/** The same of a page that counts up to 10,000 rows of each state of each topic: D1 bills the rows that are read. */
const COUNTING_LOOK_SECONDS = 10;

/** The pages, in the order in which a person asks: what is wrong, what goes how, what is stuck, who works when. */
export const PAGES = [
  { path: "/panel", name: "Overview", grant: null },
  { path: "/panel/topics", name: "Topics", grant: "topic:read" },
  { path: "/panel/items", name: "Items", grant: "item:read" },
  { path: "/panel/dead-letters", name: "Dead letters", grant: "item:read" },
  { path: "/panel/jobs", name: "Jobs", grant: "job:read" },
  { path: "/panel/workflows", name: "Workflows", grant: "workflow:read" },
  { path: "/panel/schedules", name: "Schedules", grant: "schedule:read" },
  { path: "/panel/threads", name: "Threads", grant: "thread:read", also: "/panel/runs" },
  { path: "/panel/ticks", name: "Ticks", grant: "tick:read" },
] as const;

function Document({ title, children }: { title: string; children: Child }) {
  return (
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>{`${title} · Duework`}</title>
        <link rel="icon" href="/panel/assets/panel.svg" type="image/svg+xml" />
        <link rel="stylesheet" href="/panel/assets/panel.css" />
        <script src="/panel/assets/panel.js" defer />
      </head>
      <body>{children}</body>
    </html>
  );
}

/** A whole document, as text. */
export function render({ title, body, live = true }: Content, visit: Visit): string {
  const { actor, csrf, notice, url } = visit;
  const shown = PAGES.filter(({ grant }) => grant === null || canRead(visit, grant));
  const here = url.pathname;
  const under = (path: string) => here === path || here.startsWith(`${path}/`);
  const current = [...shown].reverse().find((one) => under(one.path) || ("also" in one && under(one.also)));
  return asText(
    <Document title={title}>
      <a class="skip" href="#main">
        Skip to the main part
      </a>
      <header class="top">
        <p class="brand">
          <a href="/panel">Duework</a>
        </p>
        <nav aria-label="Pages">
          <ul>
            {shown.map(({ path, name }) => (
              <li>
                <a href={path} aria-current={path === current?.path ? (here === path ? "page" : "true") : undefined}>
                  {name}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="who">
          <button type="button" class="quiet" data-live-switch hidden aria-pressed="true">
            Live
          </button>
          <span>{actor.id}</span>
          <form method="post" action="/panel/sign-out">
            <input type="hidden" name="csrf" value={csrf} />
            <button type="submit" class="quiet">
              Sign out
            </button>
          </form>
        </div>
      </header>
      <NoticeLine notice={notice} />
      <p class="notice bad" data-live-trouble role="status" hidden />
      <main id="main" tabindex={-1} data-live={lookAfter(live)}>
        <h1>{title}</h1>
        {body}
      </main>
    </Document>,
  );
}

function lookAfter(live: boolean | "rarely"): number | undefined {
  if (live === "rarely") return COUNTING_LOOK_SECONDS;
  return live ? LOOK_SECONDS : undefined;
}

function NoticeLine({ notice }: { notice: Notice | null }) {
  if (notice === null) return null;
  return (
    <p class={`notice ${notice.tone}`} role={notice.tone === "bad" ? "alert" : "status"}>
      {notice.text}
    </p>
  );
}

/** A document for somebody who is not signed in. */
export function renderOutside(title: string, children: Child): string {
  return asText(
    <Document title={title}>
      <main id="main" class="outside">
        <h1>{title}</h1>
        {children}
      </main>
    </Document>,
  );
}

function asText(document: Rendered): string {
  return `<!DOCTYPE html>${asPart(document)}`;
}

type Rendered = { toString(): string | Promise<string> };

/** A part of a document as text: escaped by the renderer, and without NUL, which HTML has no form for. */
export function asPart(part: Rendered): string {
  return String(part.toString()).replaceAll("\0", "\uFFFD");
}
