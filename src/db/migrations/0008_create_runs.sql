-- Threads, their messages, and the runs of dispatched commands.

-- threads: what belongs together in a channel. Both tables are written by src/commands/threads.ts only.
--   `external` is where the thread is outside, once it is opened there; `posting_until` is the lease of whoever posts its
--   messages there, so that they come in order and once.
CREATE TABLE threads (
  id TEXT PRIMARY KEY,
  channel TEXT NOT NULL CHECK (channel <> ''),
  title TEXT NOT NULL,
  opened_at INTEGER NOT NULL,
  opened_by TEXT NOT NULL CHECK (opened_by <> ''),
  latest_at INTEGER NOT NULL,
  external TEXT CHECK (external <> ''),
  posting_until INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX threads_by_latest ON threads (latest_at, id);
CREATE UNIQUE INDEX threads_external ON threads (external) WHERE external IS NOT NULL;

-- messages: what was said in a thread, and by whom. `data` is what a message is about: a run, a refusal, a command that
-- a person may run in its stead.
CREATE TABLE messages (
  id TEXT PRIMARY KEY,
  thread TEXT NOT NULL,
  at INTEGER NOT NULL,
  author TEXT NOT NULL CHECK (author <> ''),
  kind TEXT NOT NULL CHECK (kind IN ('lead', 'text', 'receipt', 'result', 'refusal', 'offer')),
  text TEXT NOT NULL,
  data TEXT NOT NULL DEFAULT '{}' CHECK (json_type(data) = 'object'),
  posted_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_by_thread ON messages (thread, at, id);
CREATE INDEX messages_by_age ON messages (at, id);

-- runs: a dispatched command's execution. Written by src/commands/runs.ts only. A row without `ended_at` is live, and a
-- thread has one live run at most. `grants` are what its actor held when it was admitted.
--   admitted: claimed, its instance not begun. running: begun; `executing` is 1 from the moment its command may have had
--   an effect. lost: its instance was gone, or nobody knows what its command did. not_started: its instance never began.
CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  actor TEXT NOT NULL CHECK (actor <> ''),
  actor_kind TEXT NOT NULL CHECK (actor_kind IN ('user', 'schedule')),
  grants TEXT NOT NULL CHECK (json_type(grants) = 'object'),
  command TEXT NOT NULL CHECK (command <> ''),
  args TEXT NOT NULL CHECK (json_type(args) = 'object'),
  scope TEXT CHECK (scope <> ''),
  channel TEXT NOT NULL CHECK (channel <> ''),
  thread TEXT,
  firing TEXT,
  status TEXT NOT NULL
    CHECK (status IN ('admitted', 'running', 'succeeded', 'failed', 'cancelled', 'lost', 'not_started')),
  admitted_at INTEGER NOT NULL,
  started_at INTEGER,
  executing INTEGER NOT NULL DEFAULT 0 CHECK (executing IN (0, 1)),
  checked_at INTEGER,
  ended_at INTEGER,
  result TEXT,
  error TEXT,
  CONSTRAINT ended_runs_say_when CHECK ((status IN ('admitted', 'running')) = (ended_at IS NULL)),
  CONSTRAINT running_means_started CHECK (status <> 'running' OR started_at IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX runs_live ON runs (thread) WHERE ended_at IS NULL AND thread IS NOT NULL;
CREATE INDEX runs_open ON runs (status, admitted_at) WHERE ended_at IS NULL;
CREATE INDEX runs_by_age ON runs (admitted_at, id);
CREATE INDEX runs_lost ON runs (ended_at) WHERE status = 'lost';

-- confirmations: a write that a person was asked to confirm, once and within ten minutes. Written by
-- src/commands/confirmations.ts only.
CREATE TABLE confirmations (
  id TEXT PRIMARY KEY,
  message TEXT NOT NULL,
  requester TEXT NOT NULL CHECK (requester <> ''),
  asked_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  confirmed_at INTEGER,
  run TEXT,
  CONSTRAINT confirmed_has_its_run CHECK ((confirmed_at IS NULL) = (run IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX confirmations_once ON confirmations (message) WHERE confirmed_at IS NOT NULL;
CREATE INDEX confirmations_by_age ON confirmations (asked_at);

-- plans: write commands that a named person approved as they stand. Written by src/commands/plans.ts only.
CREATE TABLE plans (
  name TEXT PRIMARY KEY,
  commands TEXT NOT NULL CHECK (json_type(commands) = 'array'),
  digest TEXT NOT NULL,
  approved_by TEXT NOT NULL CHECK (approved_by <> ''),
  approved_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- channel_states: what is known of a channel outside: its address there, and whether it is gone. Written by
-- src/commands/channel-states.ts only.
CREATE TABLE channel_states (
  channel TEXT PRIMARY KEY,
  external TEXT,
  gone_at INTEGER,
  detail TEXT NOT NULL DEFAULT '',
  checked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
