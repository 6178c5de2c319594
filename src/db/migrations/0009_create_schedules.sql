-- Stored schedules: rows that people add, and the firings that the tick claims.

-- schedules: at most a hundred, held by the insert's own condition. Written by src/schedules/rows.ts only.
--   Due counts from the later of `last_slot` and `anchored_at` (when it was added or last enabled). `claim` is the firing
--   that moved `last_slot`: what else a claim writes is written only where this is its own.
--   Expression and text are kept as they were typed; what is malformed all the same is shown as invalid and fires
--   nothing, so no CHECK reads them.
CREATE TABLE schedules (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  cron TEXT NOT NULL,
  time_zone TEXT NOT NULL,
  text TEXT NOT NULL,
  channel TEXT NOT NULL,
  thread TEXT NOT NULL CHECK (thread IN ('new', 'standing')),
  standing_thread TEXT,
  grants TEXT NOT NULL,
  enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  anchored_at INTEGER NOT NULL,
  last_slot INTEGER,
  claim TEXT,
  CONSTRAINT standing_has_its_thread CHECK ((thread = 'standing') = (standing_thread IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- firings: one due minute of a schedule that was claimed. Written by src/schedules/firings.ts only. `schedule` is the
-- row's id: a row that is added anew under the name is another. `cron` and `time_zone` are those it fired under.
CREATE TABLE firings (
  id TEXT PRIMARY KEY,
  schedule TEXT NOT NULL,
  name TEXT NOT NULL,
  slot INTEGER NOT NULL CHECK (slot % 60000 = 0),
  claimed_at INTEGER NOT NULL,
  missed INTEGER NOT NULL CHECK (missed >= 0),
  cron TEXT NOT NULL,
  time_zone TEXT NOT NULL,
  fired_by TEXT NOT NULL CHECK (fired_by <> ''),
  outcome TEXT NOT NULL CHECK (outcome IN ('admitted', 'claimed') OR outcome GLOB 'refused:[a-z]*'),
  detail TEXT NOT NULL DEFAULT '',
  thread TEXT,
  run TEXT,
  -- Who had it dispatched again after it never started, or was refused, and how often.
  refired_by TEXT,
  refires INTEGER NOT NULL DEFAULT 0 CHECK (refires >= 0),
  UNIQUE (schedule, slot),
  CONSTRAINT admitted_has_its_run CHECK (outcome NOT IN ('admitted', 'claimed') OR run IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX firings_by_name ON firings (name, claimed_at, id);
CREATE INDEX firings_by_age ON firings (claimed_at, id);
CREATE INDEX firings_by_run ON firings (run) WHERE run IS NOT NULL;
CREATE INDEX firings_not_started ON firings (claimed_at) WHERE outcome = 'claimed';
