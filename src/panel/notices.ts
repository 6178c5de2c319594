import type { Context } from "hono";
import { deleteCookie, getCookie, setCookie } from "hono/cookie";
import * as v from "valibot";
import { parseJson } from "../core/payload.ts";
import { safeText } from "../core/text.ts";
import { isSecure } from "./guard.ts";
import type { Notice } from "./visit.ts";

/** What an act came to is said once, on the page that follows: by a cookie, so that no address holds it. */

const COOKIE = "duework-notice";
/** Longest notice, UTF-16 units. */
const NOTICE_CHARS = 300;
/** The page that follows comes within this, s. */
const KEEP_SECONDS = 60;

const noticeSchema = v.object({
  tone: v.picklist(["good", "bad"]),
  text: v.pipe(v.string(), v.maxLength(NOTICE_CHARS)),
});

export function leaveNotice(c: Context, notice: Notice): void {
  const value = JSON.stringify({ ...notice, text: safeText(notice.text, NOTICE_CHARS) });
  const options = { httpOnly: true, sameSite: "Strict", path: "/panel", maxAge: KEEP_SECONDS } as const;
  setCookie(c, COOKIE, value, { ...options, secure: isSecure(c) });
}

/** Takes the notice that was left. Null: none, or none of ours. */
export function takeNotice(c: Context): Notice | null {
  const value = getCookie(c, COOKIE);
  if (value === undefined) return null;
  deleteCookie(c, COOKIE, { path: "/panel" });
  const json = parseJson(value);
  const parsed = v.safeParse(noticeSchema, json.ok ? json.value : null);
  return parsed.success ? parsed.output : null;
}
