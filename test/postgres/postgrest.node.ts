import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import pg from "pg";

/** What the test may make of the next answer, after the database has committed. */
type Fate = "send" | "lose";

export interface Rest {
  url: string;
  /** How many calls have arrived. */
  calls: number;
  /** Makes the next call commit and its answer vanish. */
  loseNext(): void;
  close(): Promise<void>;
}

/**
 * As much of PostgREST as a function call needs: the caller's role by his key, arguments by name, one transaction in
 * that role, rows as JSON, and PostgreSQL's own code in a refusal.
 */
export async function startRest(database: pg.PoolConfig, roles: Record<string, string>): Promise<Rest> {
  const pool = new pg.Pool({ ...database, max: 10 });
  let fate: Fate = "send";
  const server = createServer((request, response) => {
    rest.calls += 1;
    const mine = fate;
    fate = "send";
    answer(pool, roles, request)
      .then(([status, body]) => (mine === "lose" ? request.socket.destroy() : send(response, status, body)))
      .catch((error) => send(response, 500, JSON.stringify({ code: "PGRST000", message: String(error) })));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const rest: Rest = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls: 0,
    loseNext: () => {
      fate = "lose";
    },
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await pool.end();
    },
  };
  return rest;
}

function send(response: ServerResponse, status: number, body: string): void {
  response.writeHead(status, { "content-type": "application/json; charset=utf-8" }).end(body);
}

const refused = (status: number, code: string, message: string): [number, string] => [
  status,
  JSON.stringify({ code, message, details: null, hint: null }),
];

async function answer(
  pool: pg.Pool,
  roles: Record<string, string>,
  request: IncomingMessage,
): Promise<[number, string]> {
  const role = roles[String(request.headers.apikey)];
  if (role === undefined) return refused(401, "PGRST301", "no such key");
  const name = /^\/rest\/v1\/rpc\/(\w+)$/.exec(request.url ?? "")?.[1];
  if (name === undefined || request.method !== "POST") return refused(404, "PGRST202", "no such function");
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  const given = Object.entries(JSON.parse(Buffer.concat(pieces).toString()) as Record<string, unknown>);
  const named = given.map(([key], index) => `${pg.escapeIdentifier(key)} => $${index + 1}`).join(", ");

  const client = await pool.connect();
  try {
    await client.query(`begin; set local role ${pg.escapeIdentifier(role)}`);
    const { rows } = await client.query<{ body: string }>(
      `select coalesce(json_agg(t), '[]')::text as body from public.${pg.escapeIdentifier(name)}(${named}) t`,
      given.map(([, value]) => value),
    );
    await client.query("commit");
    return [200, rows[0]?.body ?? "[]"];
  } catch (error) {
    await client.query("rollback");
    const { code = "XX000", message } = error as pg.DatabaseError;
    return refused(code === "42501" ? 403 : 400, code, message);
  } finally {
    client.release();
  }
}
