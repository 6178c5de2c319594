import type { Context } from "hono";
import type { ContentfulStatusCode } from "hono/utils/http-status";

/** HTTP status of each stable code; a code that is not here is a refusal of the caller's input. */
const STATUS: Record<string, ContentfulStatusCode> = {
  unauthorized: 401,
  not_granted: 403,
  cross_site: 403,
  schedule_write: 403,
  schedule_fire: 403,
  author_lost_grant: 403,
  not_found: 404,
  unknown_command: 404,
  unknown_topic: 404,
  unknown_job: 404,
  no_dead_letter: 404,
  no_item: 404,
  no_live_run: 404,
  method_not_allowed: 405,
  version_conflict: 409,
  key_taken: 409,
  slot_not_claimed: 409,
  no_storefront: 409,
  backlog_full: 409,
  name_taken: 409,
  schedules_full: 409,
  thread_busy: 409,
  already_run: 409,
  confirmation_expired: 409,
  plan_not_approved: 409,
  channel_gone: 409,
  channel_cannot_open: 409,
  not_configured: 409,
  item_moved: 409,
  item_in_flight: 409,
  item_dead: 409,
  idempotency_conflict: 409,
  idempotency_in_progress: 409,
  idempotency_unknown: 409,
  idempotency_secret: 409,
  idempotency_too_large: 409,
  body_too_large: 413,
  unsupported_media_type: 415,
  broken: 500,
  read_command_writes: 500,
  storefront_failed: 502,
  channel_unreachable: 502,
  misconfigured: 503,
  unavailable: 503,
  idempotency_full: 503,
};

/** The codes of each status; 400 is that of all others, too. */
export function codesByStatus(): Map<number, string[]> {
  const byStatus = new Map<number, string[]>([[400, ["bad_arguments"]]]);
  for (const [code, status] of Object.entries(STATUS)) byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  return byStatus;
}

/** The HTTP status of a code. */
export const statusOf = (code: string): ContentfulStatusCode => STATUS[code] ?? 400;

export const PROBLEM = { "content-type": "application/problem+json" } as const;

/** An RFC 9457 problem: its status and its body. `field` names what was wrong where there is a field. */
export function problemOf(code: string, detail: string, extra: Record<string, unknown> = {}) {
  const status = statusOf(code);
  return { status, body: { type: "about:blank", title: code.replaceAll("_", " "), status, code, detail, ...extra } };
}

/** The same as an answer. */
export function problem(c: Context, code: string, detail: string, extra: Record<string, unknown> = {}): Response {
  const { status, body } = problemOf(code, detail, extra);
  return c.json(body, status, {
    ...PROBLEM,
    ...(status === 405 && Array.isArray(extra.allow) && { allow: extra.allow.join(", ") }),
    ...(status === 401 && { "www-authenticate": "Bearer" }),
  });
}
