-- ticks: one row a tick, opened before any work and closed after it. Written by src/tick/record.ts only.
--   `at` is the tick's `now` (the later of the scheduled time and the clock); leases given outside a tick count from
--   the newest of it. A row without ended_at whose wall has passed is a tick that died in `running`.
CREATE TABLE ticks (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  wall_until INTEGER NOT NULL,
  modules TEXT NOT NULL,
  running TEXT,
  ended_at INTEGER,
  report TEXT NOT NULL DEFAULT '{}',
  buried INTEGER NOT NULL DEFAULT 0 CHECK (buried IN (0, 1)),
  CONSTRAINT ended_ticks_run_nothing CHECK (ended_at IS NULL OR running IS NULL)
) STRICT;
