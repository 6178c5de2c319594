-- idempotency_keys: commands that were asked for under an Idempotency-Key, for a day. Written by src/api/idempotency.ts
-- only. `id` grows with each row, so that the oldest come first and two looks bound how many there are.
--   `status` is null until the command has answered; a row whose lease has ended without one says that nobody knows what
--   became of it. `answer` is the body that a repeat gets; null with `kept` 'secret' or 'too_large': it is not repeated.
CREATE TABLE idempotency_keys (
  id INTEGER PRIMARY KEY,
  actor TEXT NOT NULL CHECK (actor <> ''),
  key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
  command TEXT NOT NULL CHECK (command <> ''),
  body_sha256 TEXT NOT NULL CHECK (length(body_sha256) = 64),
  claim TEXT NOT NULL CHECK (claim <> ''),
  began_at INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  status INTEGER CHECK (status BETWEEN 200 AND 599),
  kept TEXT CHECK (kept IN ('answer', 'secret', 'too_large')),
  answer TEXT,
  UNIQUE (actor, key),
  CONSTRAINT answered_says_what_is_kept CHECK ((status IS NULL) = (kept IS NULL)),
  CONSTRAINT only_an_answer_is_kept CHECK ((answer IS NOT NULL) = (kept IS NOT NULL AND kept = 'answer'))
) STRICT;
