import type { Child } from "hono/jsx";
import { safeText } from "../core/text.ts";
import { DAY, HOUR, isoInstant, MINUTE, SECOND } from "../core/time.ts";
import { canDo, canRead, linkTo, type Visit } from "./visit.ts";

/** Small parts that pages are made of. Everything that is shown is escaped by the renderer. */

/** Of a stored text, a list shows this much, UTF-16 units: the rest is a page further. */
const CUT_CHARS = 200;

/** A stored text in a list: its beginning, and where the whole is. */
export function Cut({ text, href }: { text: string | null; href?: string | undefined }) {
  if (text === null || text === "") return <span class="none">–</span>;
  if (text.length <= CUT_CHARS) return <span class="text">{text}</span>;
  const rest = `all ${text.length.toLocaleString("en")} characters`;
  return (
    <span class="text">
      {safeText(text, CUT_CHARS)}… {href === undefined ? <span class="more">({rest})</span> : <a href={href}>{rest}</a>}
    </span>
  );
}

/** A link to what needs a grant; for who lacks it, its text alone. */
export function Go({ visit, grant, href, children }: { visit: Visit; grant: string; href: string; children: Child }) {
  return canRead(visit, grant) ? <a href={href}>{children}</a> : <span>{children}</span>;
}

/** A stored text, whole. */
export function Whole({ text, label }: { text: string; label: string }) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: what scrolls is reached by the keyboard, and so needs a name
    <pre class="whole" tabindex={0} role="region" aria-label={label}>
      {text}
    </pre>
  );
}

/** A value as JSON that can be read. */
export const asJson = (value: unknown): string =>
  typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");

/** An instant as `2026-01-31 09:00:00`, in UTC; what is none, as the number it is. */
export function stamp(ms: number): string {
  return Math.abs(ms) <= 8.64e15 ? isoInstant(ms).slice(0, 19).replace("T", " ") : String(ms);
}

/** An instant: UTC to the second, and how far from now. */
export function Time({ at, now }: { at: string | number | null; now: number }) {
  if (at === null) return <span class="none">–</span>;
  const ms = typeof at === "number" ? at : Date.parse(at);
  if (!Number.isFinite(ms) || Math.abs(ms) > 8.64e15) return <span class="text">{String(at)}</span>;
  const iso = isoInstant(ms);
  return (
    <time datetime={iso} title={iso}>
      {iso.slice(0, 19).replace("T", " ")}
      <span class="ago">{ago(ms, now)}</span>
    </time>
  );
}

/** `3 min ago`, `in 20 s`. */
export function ago(at: number, now: number): string {
  const far = Math.abs(now - at);
  if (far < SECOND) return "now";
  const text = lasting(far);
  return at < now ? `${text} ago` : `in ${text}`;
}

/** A length of time in its largest unit. */
export function lasting(ms: number): string {
  const units = [
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "min"],
    [SECOND, "s"],
  ] as const;
  const [size, unit] = units.find(([size]) => ms >= size) ?? [1, "ms"];
  return `${Math.floor(ms / size)} ${unit}`;
}

/** A count that read so many rows at most. */
export interface Count {
  value: number;
  capped: boolean;
}
export const counted = ({ value, capped }: Count): string => `${value.toLocaleString("en")}${capped ? "+" : ""}`;

type Tone = "good" | "bad" | "warn" | "plain";

/** A state: a word, and a mark that says the same without colour. */
export function State({ word, tone }: { word: string; tone: Tone }) {
  const mark = { good: "✓", bad: "✕", warn: "!", plain: "·" }[tone];
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{mark}</span> {word}
    </span>
  );
}

/** What stands where there is nothing: what that means, and what to do. */
export function Empty({ children }: { children: Child }) {
  return <p class="empty">{children}</p>;
}

/** Heads of columns; those of numbers are named in `numbers`, and stand at the right as their cells do. */
interface TableProps {
  label: string;
  head: readonly string[];
  numbers?: readonly string[];
  children: Child;
}

/** A table that scrolls by itself on a narrow screen. */
export function Table({ label, head, numbers = [], children }: TableProps) {
  return (
    <section class="scroll" tabindex={0} aria-label={label}>
      <table>
        <thead>
          <tr>
            {head.map((name) => (
              <th scope="col" class={numbers.includes(name) ? "number" : undefined}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </section>
  );
}

/** Names and values. */
export function Facts({ rows }: { rows: readonly (readonly [string, Child])[] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The way to the next page of a list. */
export function Pager({ url, next }: { url: URL; next: string | null }) {
  const first = !url.searchParams.has("cursor");
  if (first && next === null) return null;
  return (
    <nav class="pager" aria-label="Parts of the list">
      {first ? null : <a href={linkTo(url, { cursor: null })}>First</a>}
      {next === null ? null : <a href={linkTo(url, { cursor: next })}>Next</a>}
    </nav>
  );
}

interface ActProps {
  visit: Visit;
  command: string;
  args: Record<string, unknown>;
  label: string;
  /** What it is done to, for who does not see the row. */
  about: string;
  /** Where it goes afterwards; default: this page. */
  back?: string;
  primary?: boolean;
}

/** A button that runs a command at once. Not there for who may not. */
export function Act({ visit, command, args, label, about, back = backOf(visit), primary = false }: ActProps) {
  if (!canDo(visit, command)) return null;
  return (
    <form method="post" action={`/panel/act/${command}`} class="act">
      <Hidden visit={visit} args={args} back={back} />
      <button type="submit" class={primary ? "primary" : undefined} aria-label={`${label}: ${about}`}>
        {label}
      </button>
    </form>
  );
}

/** A link to the page that says what a command will do and asks for it. Not there for who may not. */
export function Ask({ visit, command, args, label, about, back = backOf(visit) }: ActProps) {
  if (!canDo(visit, command)) return null;
  const query = new URLSearchParams({ args: JSON.stringify(args), back });
  return (
    <a class="button danger" href={`/panel/ask/${command}?${query}`} aria-label={`${label} ${about}`}>
      {label}…
    </a>
  );
}

/** What every form of an act carries. */
export function Hidden({ visit, args, back }: Pick<ActProps, "visit" | "args"> & { back: string }) {
  return (
    <>
      <input type="hidden" name="csrf" value={visit.csrf} />
      <input type="hidden" name="args" value={JSON.stringify(args)} />
      <input type="hidden" name="back" value={back} />
    </>
  );
}

const backOf = ({ url }: Visit): string => url.pathname + url.search;
