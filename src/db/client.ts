import { withDeadline } from "./deadline.ts";
import type { Meter } from "./meter.ts";

/** A D1 call that takes longer is given up: the platform's own bound is 30 s, and stalls of a minute are seen. */
export const DB_DEADLINE_MS = 10_000;

interface Client {
  meter: Meter;
  deadlineMs: number;
}

/**
 * A D1 client that counts every call, statement and row, and gives up a call at its deadline.
 *
 * It is a Proxy over the real objects, so that its statements can stand in the same `batch` as statements of the bare
 * binding. `first` is asked as `all`, since D1 drops the row counts of `first`; `raw` and `exec` count calls only.
 *
 * @throws what D1 throws, and `TimedOut`.
 */
export function meterDb(db: D1Database, meter: Meter, deadlineMs: number = DB_DEADLINE_MS): D1Database {
  const client = { meter, deadlineMs };
  return new Proxy(db, {
    get(target, name) {
      switch (name) {
        case "prepare":
          return (sql: string) => meterStatement(target.prepare(sql), client);
        case "batch":
          return (statements: D1PreparedStatement[]) => meterBatch(target, statements, client);
        case "exec":
          return (sql: string) => counted(client, 1, target.exec(sql));
        default: {
          const member = Reflect.get(target, name, target);
          return typeof member === "function" ? member.bind(target) : member;
        }
      }
    },
  });
}

function meterStatement(statement: D1PreparedStatement, client: Client): D1PreparedStatement {
  return new Proxy(statement, {
    get(target, name) {
      switch (name) {
        case "bind":
          return (...values: unknown[]) => meterStatement(target.bind(...values), client);
        case "all":
        case "run":
          return async () => tally(client.meter, await counted(client, 1, target.all()));
        case "first":
          return async (column?: string) => {
            const result = tally(client.meter, await counted(client, 1, target.all<Record<string, unknown>>()));
            const row = result.results[0];
            if (row === undefined) return null;
            if (column === undefined) return row;
            if (!(column in row)) throw new Error(`D1_COLUMN_NOTFOUND: Column not found (${column})`);
            return row[column];
          };
        case "raw":
          return (options?: { columnNames: true }) => counted(client, 1, target.raw(options as { columnNames: true }));
        default: {
          const member = Reflect.get(target, name, target);
          return typeof member === "function" ? member.bind(target) : member;
        }
      }
    },
  });
}

async function meterBatch(db: D1Database, statements: D1PreparedStatement[], client: Client): Promise<D1Result[]> {
  const results = await counted(client, statements.length, db.batch(statements));
  for (const result of results) tally(client.meter, result);
  return results;
}

/** Counts before the answer: a call whose answer is lost was made all the same. */
async function counted<T>(client: Client, queries: number, work: Promise<T>): Promise<T> {
  client.meter.calls += 1;
  client.meter.queries += queries;
  return withDeadline(work, client.deadlineMs, "D1");
}

function tally<T>(meter: Meter, result: D1Result<T>): D1Result<T> {
  meter.rowsRead += result.meta.rows_read;
  meter.rowsWritten += result.meta.rows_written;
  return result;
}

/**
 * What a failed D1 call means for the caller:
 * `retry` a passing fault, the statement did not run or may be asked again if keyed;
 * `later` overloaded or timed out: back off, it may have landed;
 * `broken` the statement itself is wrong (a constraint, a syntax error): asking again will fail again.
 */
export function classifyDbError(error: unknown): "retry" | "later" | "broken" {
  const text = error instanceof Error ? error.message : String(error);
  if (error instanceof Error && error.name === "TimedOut") return "later";
  if (/overloaded|queued for too long|daily .*limit/i.test(text)) return "later";
  if (
    /constraint|syntax|no such|too many|number of parameter|SQLITE_(ERROR|CONSTRAINT|MISMATCH|RANGE|AUTH|TOOBIG)|D1_TYPE_ERROR/i.test(
      text,
    )
  ) {
    return "broken";
  }
  return "retry";
}

/** True when a write was refused by the named CHECK or by a UNIQUE over `table.column`. */
export function isConstraint(error: unknown, name: string): boolean {
  return error instanceof Error && /constraint failed/i.test(error.message) && error.message.includes(name);
}
