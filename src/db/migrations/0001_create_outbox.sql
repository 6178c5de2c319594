-- The outbox. One row an item; the row's place in the key is its state.
--
-- items: written by src/outbox/items.ts only.
--   lane 0 ready (at = due), 1 leased and sent (at = lease end), 2 running (at = lease end).
--   Moving a row to its next state moves its key, so whoever holds the old key finds nothing. `turn` grows with each
--   move and never returns: key and turn together are the fence.
--   `born_at` is what its age counts from: when it was enqueued, or last answered nextAt, and not before it was due then.
--   No index and no rowid: D1 bills a row for each index entry a move adds, and the key already lists by state and age.
CREATE TABLE items (
  topic TEXT NOT NULL,
  lane INTEGER NOT NULL CHECK (lane IN (0, 1, 2)),
  at INTEGER NOT NULL,
  seq TEXT NOT NULL CHECK (length(seq) = 18),
  turn INTEGER NOT NULL CHECK (turn >= 0),
  due_at INTEGER NOT NULL,
  born_at INTEGER NOT NULL,
  k TEXT CHECK (k <> ''),
  payload TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  deliveries INTEGER NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
  lapses INTEGER NOT NULL DEFAULT 0 CHECK (lapses >= 0),
  error TEXT,
  PRIMARY KEY (topic, lane, at, seq),
  CONSTRAINT ready_is_at_its_due_time CHECK (lane > 0 OR at = due_at)
) STRICT, WITHOUT ROWID;

-- item_keys: written by src/outbox/items.ts only, under the same fence as the item it belongs to.
--   held_until is null while the item lives; afterwards the key stays taken until that instant.
CREATE TABLE item_keys (
  topic TEXT NOT NULL,
  k TEXT NOT NULL,
  seq TEXT NOT NULL,
  held_until INTEGER,
  PRIMARY KEY (topic, k)
) STRICT, WITHOUT ROWID;
CREATE INDEX item_keys_held ON item_keys (held_until) WHERE held_until IS NOT NULL;

-- backlog_bounds: never holds a row. An insert into it is how a statement in the caller's own batch refuses the whole
-- batch when the topic's backlog is full. Written by src/outbox/items.ts only.
CREATE TABLE backlog_bounds (
  topic TEXT NOT NULL,
  room INTEGER NOT NULL,
  CONSTRAINT backlog_full CHECK (room > 0)
) STRICT;

-- dead_letters: written by src/outbox/dead-letters.ts only. A row is an item that will not be tried again by itself.
CREATE TABLE dead_letters (
  id TEXT PRIMARY KEY,
  topic TEXT NOT NULL,
  k TEXT,
  payload TEXT NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  deliveries INTEGER NOT NULL,
  born_at INTEGER NOT NULL,
  died_at INTEGER NOT NULL,
  CONSTRAINT dead_letter_has_a_reason CHECK (reason <> '')
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_letters_by_topic ON dead_letters (topic, died_at, id);

-- topics: what an operator has set, a row a topic once it differs from the code's default. topic_changes is its
-- history. Both written by src/outbox/paths.ts only.
CREATE TABLE topics (
  topic TEXT PRIMARY KEY,
  path TEXT NOT NULL CHECK (path IN ('queue', 'drain')),
  paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
  version INTEGER NOT NULL CHECK (version > 0),
  changed_at INTEGER NOT NULL,
  changed_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE topic_changes (
  topic TEXT NOT NULL,
  version INTEGER NOT NULL,
  path TEXT NOT NULL CHECK (path IN ('queue', 'drain')),
  paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
  changed_at INTEGER NOT NULL,
  changed_by TEXT NOT NULL,
  PRIMARY KEY (topic, version)
) STRICT, WITHOUT ROWID;

-- pumps: at most one chain of pump messages a topic; step is its fence. Written by src/outbox/pump.ts only.
CREATE TABLE pumps (
  topic TEXT PRIMARY KEY,
  chain TEXT NOT NULL,
  step INTEGER NOT NULL CHECK (step >= 0),
  claimed INTEGER NOT NULL CHECK (claimed >= 0),
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
