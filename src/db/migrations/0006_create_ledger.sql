-- The ledger of work that is owed because of an effect that has already happened.
-- All but workflow_steps are written by src/jobs/obligations.ts only.

-- obligations: one row a job and workspace. `version` is raised by each new effect, so that an answer about an older
-- one settles nothing. Quarantined rows are kept, hold room, and are settled only by a person.
CREATE TABLE obligations (
  job TEXT NOT NULL,
  workspace TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('owed', 'quarantined')),
  version INTEGER NOT NULL CHECK (version > 0),
  -- The oldest effect that is not settled.
  since INTEGER NOT NULL,
  charges INTEGER NOT NULL DEFAULT 0 CHECK (charges BETWEEN 0 AND 3),
  quarantined_at INTEGER,
  error TEXT,
  PRIMARY KEY (job, workspace),
  CONSTRAINT workspace_is_a_uuid CHECK (length(workspace) = 36),
  CONSTRAINT quarantine_has_its_time CHECK ((state = 'quarantined') = (quarantined_at IS NOT NULL)),
  CONSTRAINT three_charges_quarantine CHECK ((state = 'quarantined') = (charges = 3))
) STRICT, WITHOUT ROWID;
CREATE INDEX obligations_by_age ON obligations (job, state, since, workspace);

-- charges: one row an item and sweep in which it was asked for and not confirmed. Gone with the obligation.
CREATE TABLE charges (
  job TEXT NOT NULL,
  workspace TEXT NOT NULL,
  slot INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  charged_at INTEGER NOT NULL,
  error TEXT NOT NULL,
  PRIMARY KEY (job, workspace, slot)
) STRICT, WITHOUT ROWID;

-- settlements: what a person settled out of quarantine, and why.
CREATE TABLE settlements (
  job TEXT NOT NULL,
  settled_at INTEGER NOT NULL,
  workspace TEXT NOT NULL,
  version INTEGER NOT NULL,
  since INTEGER NOT NULL,
  how TEXT NOT NULL CHECK (how IN ('by hand', 'revalidated')),
  settled_by TEXT NOT NULL CHECK (settled_by <> ''),
  reason TEXT NOT NULL CHECK (reason <> ''),
  error TEXT,
  PRIMARY KEY (job, settled_at, workspace)
) STRICT, WITHOUT ROWID;

-- expiry_batches: one row a batch, by the key under which it is asked for. While it is open its effect may have
-- happened and is not recorded: it holds the room it may need, and no other batch of the job begins. `rows` lives only
-- inside the call that closes it.
CREATE TABLE expiry_batches (
  key TEXT PRIMARY KEY,
  job TEXT NOT NULL,
  slot INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  number INTEGER NOT NULL CHECK (number BETWEEN 1 AND 10),
  adapter TEXT NOT NULL CHECK (adapter IN ('d1', 'supabase')),
  expired_before INTEGER NOT NULL,
  asked INTEGER NOT NULL CHECK (asked > 0),
  opened_at INTEGER NOT NULL,
  rows TEXT CHECK (json_type(rows) = 'array'),
  closed_at INTEGER,
  expired INTEGER CHECK (expired BETWEEN 0 AND asked),
  CONSTRAINT closed_says_how_many CHECK ((closed_at IS NULL) = (expired IS NULL)),
  CONSTRAINT closed_keeps_no_rows CHECK (closed_at IS NULL OR rows IS NULL)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX expiry_batches_open ON expiry_batches (job) WHERE closed_at IS NULL;
CREATE INDEX expiry_batches_by_age ON expiry_batches (closed_at) WHERE closed_at IS NOT NULL;

-- ledger_bounds: never holds a row. An insert into it is how a batch that would exceed the bound is refused whole.
CREATE TABLE ledger_bounds (
  room INTEGER NOT NULL,
  CONSTRAINT ledger_full CHECK (room >= 0)
) STRICT;

-- workflow_steps: written by src/jobs/steps.ts only. What each step of a Workflow instance has done so far, written in
-- the step's own batch: a step that runs again goes on from it, and the steps can be listed.
CREATE TABLE workflow_steps (
  workflow TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  position INTEGER NOT NULL CHECK (position >= 0),
  name TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  progress TEXT NOT NULL CHECK (json_type(progress) = 'object'),
  PRIMARY KEY (workflow, instance_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_steps_by_age ON workflow_steps (updated_at);
