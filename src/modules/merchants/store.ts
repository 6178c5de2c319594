/** Every statement of `merchant_accounts`. No statement reads a clock. */

/** Accounts in one statement: with URLs of the longest kind still below what D1 takes as one value. */
const ACCOUNTS_PER_STATEMENT = 250;

export interface Account {
  id: string;
  url: string;
  everySeconds: number;
}

/** Those of the ids that there are, as they stand. */
export async function readAccounts(db: D1Database, ids: readonly string[]): Promise<Map<string, Account>> {
  const { results } = await db
    .prepare(
      `SELECT id, url, every_seconds AS everySeconds FROM merchant_accounts
       WHERE id IN (SELECT value FROM json_each(?1))`,
    )
    .bind(JSON.stringify(ids))
    .all<Account>();
  return new Map(results.map((account) => [account.id, account]));
}

/** Adds accounts, or gives those that exist another URL and period. What was counted stays. */
export function putAccounts(db: D1Database, accounts: readonly Account[]): D1PreparedStatement[] {
  const statement = db.prepare(
    `INSERT INTO merchant_accounts (id, url, every_seconds)
     SELECT value->>0, value->>1, value->>2 FROM json_each(?1) WHERE true
     ON CONFLICT (id) DO UPDATE SET url = excluded.url, every_seconds = excluded.every_seconds`,
  );
  const statements: D1PreparedStatement[] = [];
  for (let first = 0; first < accounts.length; first += ACCOUNTS_PER_STATEMENT) {
    const rows = accounts
      .slice(first, first + ACCOUNTS_PER_STATEMENT)
      .map(({ id, url, everySeconds }) => [id, url, everySeconds]);
    statements.push(statement.bind(JSON.stringify(rows)));
  }
  return statements;
}

/** What one poll found. */
export interface Polled {
  id: string;
  /** ms */
  at: number;
  /** Null: no answer. */
  status: number | null;
  /** Null: it succeeded. */
  error: string | null;
}

/** Records polls, each of another account, in one statement however many. */
export function recordPolls(db: D1Database, polls: readonly Polled[]): D1PreparedStatement {
  const rows = polls.map(({ id, at, status, error }) => [id, at, status, error]);
  return db
    .prepare(
      `UPDATE merchant_accounts SET last_poll_at = p.value->>1, last_status = p.value->>2, last_error = p.value->>3,
         polls = polls + 1, failures = failures + (p.value->>3 IS NOT NULL)
       FROM json_each(?1) AS p WHERE merchant_accounts.id = p.value->>0`,
    )
    .bind(JSON.stringify(rows));
}

export interface AccountView extends Account {
  /** ISO 8601; null = never. */
  lastPollAt: string | null;
  lastStatus: number | null;
  /** Null: the last poll succeeded, or there was none. */
  lastError: string | null;
  polls: number;
  /** How many of the polls failed. */
  failures: number;
}

const VIEW = `id, url, every_seconds AS everySeconds, last_poll_at AS lastPollAt, last_status AS lastStatus,
  last_error AS lastError, polls, failures`;

type ViewRow = Omit<AccountView, "lastPollAt"> & { lastPollAt: number | null };

function viewOf(row: ViewRow): AccountView {
  return { ...row, lastPollAt: row.lastPollAt === null ? null : new Date(row.lastPollAt).toISOString() };
}

/** Accounts by id, from after `cursor`. */
export async function listAccounts(db: D1Database, cursor: string, limit: number): Promise<AccountView[]> {
  const { results } = await db
    .prepare(`SELECT ${VIEW} FROM merchant_accounts WHERE id > ?1 ORDER BY id LIMIT ?2`)
    .bind(cursor, limit)
    .all<ViewRow>();
  return results.map(viewOf);
}

/** How many accounts stand how. */
export interface AuditCounts {
  accounts: number;
  /** Their last poll was since then, and succeeded or failed. */
  succeeded: number;
  failed: number;
  /** Their last poll failed, whenever it was. */
  failing: number;
  neverPolled: number;
  /** All polls and failures of these accounts, since they were added. */
  polls: number;
  failures: number;
}

/**
 * How the accounts among the first `most` by id stand, and of those whose last poll since `since` (ms) failed the `top`
 * that failed most, ever.
 */
export async function auditAccounts(
  db: D1Database,
  since: number,
  most: number,
  top: number,
): Promise<{ counts: AuditCounts; worst: AccountView[] }> {
  const seen = "(SELECT * FROM merchant_accounts ORDER BY id LIMIT ?1)";
  const [counted, worst] = (await db.batch([
    db
      .prepare(
        `SELECT count(*) AS accounts, count(*) FILTER (WHERE last_poll_at >= ?2 AND last_error IS NULL) AS succeeded,
                count(*) FILTER (WHERE last_poll_at >= ?2 AND last_error IS NOT NULL) AS failed,
                count(last_error) AS failing, count(*) - count(last_poll_at) AS neverPolled,
                coalesce(sum(polls), 0) AS polls, coalesce(sum(failures), 0) AS failures
         FROM ${seen}`,
      )
      .bind(most, since),
    db
      .prepare(
        `SELECT ${VIEW} FROM ${seen} WHERE last_poll_at >= ?2 AND last_error IS NOT NULL
         ORDER BY failures DESC, id LIMIT ?3`,
      )
      .bind(most, since, top),
  ])) as [D1Result<AuditCounts>, D1Result<ViewRow>];
  // An aggregate always has its one row.
  return { counts: counted.results[0] as AuditCounts, worst: worst.results.map(viewOf) };
}
