import type { Context } from "hono";
import { problem } from "./problem.ts";
import type { Env } from "./request.ts";

/**
 * `/docs`: Swagger UI over `/openapi.json`. Its files are assets beside the Worker, none of them in its bundle; where a
 * Worker has none, the page says so.
 */

/** Served under `/docs/`, each as that type. `src/cli/assets.ts` puts them there. */
const FILES: Record<string, string> = {
  "docs.js": "text/javascript; charset=utf-8",
  "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
  "swagger-ui.css": "text/css; charset=utf-8",
};

/** Nothing from elsewhere, and no script or style in the page. The viewer's icons are `data:` images. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const HEADERS = {
  "content-security-policy": POLICY,
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cache-control": "no-store",
};

const page = (head: string, body: string) => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Duework API</title>
<link rel="icon" href="data:,">
${head}</head>
<body>
${body}
</body>
</html>
`;

const VIEWER = page(
  '<link rel="stylesheet" href="/docs/swagger-ui.css">\n',
  '<div id="docs"><noscript>The viewer needs JavaScript. The document itself: <a href="/openapi.json">/openapi.json</a></noscript></div>\n' +
    '<script src="/docs/swagger-ui-bundle.js"></script>\n<script src="/docs/docs.js"></script>',
);

const WITHOUT = page(
  "",
  "<h1>No viewer here</h1>\n" +
    "<p>This Worker has no assets: point <code>assets.directory</code> at " +
    "<code>node_modules/duework/dist/assets</code>, with the binding <code>ASSETS</code>. " +
    'The document itself: <a href="/openapi.json">/openapi.json</a></p>',
);

/** `GET /docs` */
export function docsPage(c: Context<Env>, assets: Fetcher | null): Response {
  return c.html(assets === null ? WITHOUT : VIEWER, 200, HEADERS);
}

/** `GET /docs/<file>` */
export async function docsFile(c: Context<Env>, assets: Fetcher | null): Promise<Response> {
  const type = Object.hasOwn(FILES, c.req.param("file") ?? "") ? FILES[c.req.param("file") ?? ""] : undefined;
  const found = type === undefined ? undefined : await assets?.fetch(new URL(c.req.path, c.req.url));
  if (type === undefined || !found?.ok) return problem(c, "not_found", "there is nothing here");
  return new Response(found.body, {
    headers: { ...HEADERS, "content-type": type, "cache-control": "private, max-age=3600" },
  });
}
