import { DueworkError } from "../core/errors.ts";

/** A D1 client for a command that only reads: anything else throws a DueworkError `read_command_writes`. */
export function readOnlyDb(_db: D1Database): D1Database {
  throw new DueworkError("not_built", "", "not built yet");
}
