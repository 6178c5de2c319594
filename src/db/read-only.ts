import { DueworkError } from "../core/errors.ts";

/** The code of what {@link readOnlyDb} throws. */
export const WRITES = "read_command_writes";

/**
 * A D1 client for work that only reads: what would write is refused before it reaches D1. It is a Proxy over the real
 * objects, so that its statements can stand in a `batch`.
 *
 * @param onRefused is told of each refusal, for the caller whose work swallows what is thrown
 * @throws DueworkError `read_command_writes` from `prepare` and `exec`; `field` is the word that gave it away.
 */
export function readOnlyDb<Client extends D1Database | D1DatabaseSession>(
  db: Client,
  onRefused: (refusal: DueworkError) => void = () => {},
): Client {
  const refuse = (word: string): never => {
    const refusal = new DueworkError(WRITES, word, `what only reads prepared a statement that writes: ${word}`);
    onRefused(refusal);
    throw refusal;
  };
  return new Proxy(db, {
    get(target, name) {
      if (name === "exec") return (sql: string) => refuse(writingWord(sql) ?? "exec");
      if (name === "prepare") {
        return (sql: string) => {
          const word = writingWord(sql);
          return word === null ? target.prepare(sql) : refuse(word);
        };
      }
      if (name === "withSession" && "withSession" in target) {
        return (bookmark?: string) => readOnlyDb(target.withSession(bookmark), onRefused);
      }
      const member: unknown = Reflect.get(target, name, target);
      return typeof member === "function" ? member.bind(target) : member;
    },
  });
}

/**
 * SQL in pieces, as SQLite cuts it: what holds no word (byte order marks, comments, strings, names in quotes, variables,
 * numbers), then words, then the marks that matter here.
 */
const PIECES =
  /\uFEFF|--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$)|`(?:[^`]|``)*(?:`|$)|\[[^\]]*(?:\]|$)|[?$@:#][\w$:\u0080-\u{10ffff}]*(?:\([^\s)]*\))?|\d[\w.]*|([A-Za-z_\u0080-\u{10ffff}][\w$\u0080-\u{10ffff}]*)|([();])/gu;

/** Where the statement behind `WITH … AS (…)` begins, once its parentheses are closed. */
const VERBS = new Set(["SELECT", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE"]);

/**
 * The word that says that a text does more than read: the first of a statement, or the one behind its `WITH`; null when
 * each of its statements is a SELECT or VALUES. Whatever else there is counts as writing.
 */
export function writingWord(sql: string): string | null {
  let statements = 0;
  let depth = 0;
  /** The word that says what the present statement does, once it is known. */
  let verb: string | null = null;
  let first: string | null = null;
  for (const [, word, mark] of sql.matchAll(PIECES)) {
    if (mark === "(") depth += 1;
    else if (mark === ")") depth -= 1;
    else if (mark === ";") {
      if (first !== null && verb === null) return first;
      [first, verb, depth] = [null, null, 0];
    } else if (word !== undefined && verb === null) {
      const upper = word.toUpperCase();
      first ??= upper;
      if (first === "WITH" && (depth > 0 || !VERBS.has(upper))) continue;
      if (upper !== "SELECT" && upper !== "VALUES") return upper;
      verb = upper;
      statements += 1;
    }
  }
  if (first !== null && verb === null) return first;
  return statements === 0 ? "nothing" : null;
}
