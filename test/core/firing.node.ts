import { Cron as Croner } from "croner";
import { CronExpressionParser } from "cron-parser";
import { vi } from "vitest";
import { nextFire } from "../../src/core/calendar.ts";
import { type Cron, parseCron } from "../../src/core/cron.ts";
import { isoInstant } from "../../src/core/time.ts";

export function read(text: string): Cron {
  const parsed = parseCron(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.message}`);
  return parsed.cron;
}

/** Each use of a formatter reads its `format`, which is a getter, so this counts what `Intl` is asked. */
export const spyOnReads = () =>
  vi.spyOn(Intl.DateTimeFormat.prototype as { readonly format: unknown }, "format", "get");

/** `2026-03-08T07:00`: to the minute, in UTC. */
export const short = (at: number | null | undefined): string => (at == null ? "never" : isoInstant(at).slice(0, 16));
export const instant = (text: string): number => Date.parse(`${text}Z`);

export function fires(text: string, zone: string, after: number, count: number): number[] {
  const cron = read(text);
  const found: number[] = [];
  for (let at = nextFire(cron, after, zone); at !== null && found.length < count; at = nextFire(cron, at, zone)) {
    found.push(at);
  }
  return found;
}

export function cronerFires(text: string, zone: string, after: number, count: number): string[] {
  const job = new Croner(text, { timezone: zone, mode: "5-part" });
  return job.nextRuns(count, new Date(after)).map((date) => short(date.getTime()));
}

export function parserFires(text: string, zone: string, after: number, count: number): string[] {
  const expression = CronExpressionParser.parse(text, { currentDate: new Date(after), tz: zone });
  return Array.from({ length: count }, () => short(expression.next().getTime()));
}
