-- The operator's panel. Both tables are written by src/panel/sessions.ts only.

-- sessions: people who are signed in. The session's id is random and stands in their cookie only; here is its SHA-256,
-- lower-case hex. What a subject may do is not kept: it is read from the tokens as they are.
CREATE TABLE sessions (
  id_sha256 TEXT PRIMARY KEY CHECK (length(id_sha256) = 64),
  subject TEXT NOT NULL CHECK (subject <> ''),
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  CONSTRAINT sessions_end CHECK (expires_at > created_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- sign_in_tries: sign-ins that failed, by a digest of the client's address: 65,536 rows at most, and no address in them.
-- `until` is when the count begins anew.
CREATE TABLE sign_in_tries (
  bucket INTEGER PRIMARY KEY CHECK (bucket BETWEEN 0 AND 65535),
  tries INTEGER NOT NULL CHECK (tries >= 0),
  until INTEGER NOT NULL
) STRICT;
