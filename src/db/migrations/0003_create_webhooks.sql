-- The webhooks module. Both tables are written by src/modules/webhooks/store.ts only.

-- webhook_endpoints: who is told of which events. A row is never deleted, so that an item on its way finds what became
-- of its endpoint: `gone` answered 410, `removed` was taken away by a person. Neither keeps a secret.
CREATE TABLE webhook_endpoints (
  id TEXT PRIMARY KEY,
  url TEXT NOT NULL CHECK (length(url) BETWEEN 1 AND 2048),
  events TEXT NOT NULL CHECK (json_type(events) = 'array' AND json_array_length(events) > 0),
  subject TEXT CHECK (subject <> ''),
  secret TEXT CHECK (secret GLOB 'whsec_*'),
  old_secret TEXT CHECK (old_secret GLOB 'whsec_*'),
  old_secret_until INTEGER,
  state TEXT NOT NULL CHECK (state IN ('active', 'gone', 'removed')),
  created_at INTEGER NOT NULL,
  ended_at INTEGER,
  CONSTRAINT ended_unless_active CHECK ((state = 'active') = (ended_at IS NULL)),
  CONSTRAINT secret_while_active CHECK ((state = 'active') = (secret IS NOT NULL)),
  CONSTRAINT old_secret_beside_a_new_one CHECK (old_secret IS NULL OR secret IS NOT NULL),
  CONSTRAINT old_secret_has_an_end CHECK ((old_secret IS NULL) = (old_secret_until IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_endpoints_by_subject ON webhook_endpoints (subject) WHERE state = 'active';

-- webhook_deliveries: the log, one row a delivery. The day (UTC, days since 1970) leads the key: old days are one range
-- at its head, an event is found by a seek a day, and no index is billed beside the row.
CREATE TABLE webhook_deliveries (
  day INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  at INTEGER NOT NULL,
  item TEXT NOT NULL,
  endpoint_id TEXT NOT NULL,
  attempt INTEGER NOT NULL CHECK (attempt > 0),
  outcome TEXT NOT NULL CHECK (outcome IN ('delivered', 'retried', 'dead', 'dropped')),
  status INTEGER CHECK (status BETWEEN 100 AND 999),
  ms INTEGER NOT NULL CHECK (ms >= 0),
  error TEXT,
  response TEXT CHECK (length(response) <= 256),
  PRIMARY KEY (day, event_id, at, item),
  CONSTRAINT day_is_that_of_at CHECK (day = at / 86400000),
  CONSTRAINT delivered_means_2xx CHECK (outcome <> 'delivered' OR (status BETWEEN 200 AND 299 AND error IS NULL)),
  CONSTRAINT dropped_means_not_called CHECK (outcome <> 'dropped' OR status IS NULL)
) STRICT, WITHOUT ROWID;
