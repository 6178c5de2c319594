-- Jobs: catalog entries in code with a cron. Both tables are written by src/jobs/slots.ts only.

-- jobs: one row a job once it has been claimed or stopped. `generation` counts its claims; `claimed` is 1 while the
-- newest claim has not been completed, and its lease says until when no other is given.
CREATE TABLE jobs (
  id TEXT PRIMARY KEY,
  generation INTEGER NOT NULL CHECK (generation >= 0),
  last_slot INTEGER,
  claimed INTEGER NOT NULL CHECK (claimed IN (0, 1)),
  lease_until INTEGER,
  -- Slots in a row that failed or ended unknown: five stop the job.
  failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
  -- Degraded slots in a row that settled and expired nothing: twelve are an alert.
  stalled INTEGER NOT NULL DEFAULT 0 CHECK (stalled >= 0),
  stopped_at INTEGER,
  stop_reason TEXT,
  stopped_by TEXT,
  CONSTRAINT stop_says_why CHECK ((stopped_at IS NULL) = (stop_reason IS NULL) AND (stopped_at IS NULL) = (stopped_by IS NULL)),
  CONSTRAINT claimed_has_a_lease CHECK (claimed = 0 OR (lease_until IS NOT NULL AND last_slot IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- slots: one due minute of a job that was claimed. `result` is null until it is completed, or found to be unknown.
CREATE TABLE slots (
  job TEXT NOT NULL,
  slot INTEGER NOT NULL CHECK (slot % 60000 = 0),
  generation INTEGER NOT NULL CHECK (generation > 0),
  processor TEXT NOT NULL CHECK (processor IN ('route', 'module', 'workflow')),
  missed INTEGER NOT NULL CHECK (missed >= 0),
  claimed_at INTEGER NOT NULL,
  deadline INTEGER NOT NULL,
  started_at INTEGER,
  completed_at INTEGER,
  result TEXT CHECK (result IN ('succeeded', 'degraded', 'failed', 'unknown')),
  instance_id TEXT,
  detail TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (job, slot),
  UNIQUE (job, generation),
  CONSTRAINT result_has_its_time CHECK ((result IS NULL) = (completed_at IS NULL))
) STRICT, WITHOUT ROWID;
