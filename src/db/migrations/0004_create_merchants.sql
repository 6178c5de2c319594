-- merchant_accounts: whom the merchants module polls, and what its last poll found. Written by
-- src/modules/merchants/store.ts only. When an account is next polled stands on its item, not here.
CREATE TABLE merchant_accounts (
  id TEXT PRIMARY KEY CHECK (id <> ''),
  url TEXT NOT NULL CHECK (length(url) BETWEEN 1 AND 2048),
  every_seconds INTEGER NOT NULL CHECK (every_seconds > 0),
  last_poll_at INTEGER,
  last_status INTEGER CHECK (last_status BETWEEN 100 AND 999),
  last_error TEXT,
  polls INTEGER NOT NULL DEFAULT 0 CHECK (polls >= 0),
  failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
  CONSTRAINT failures_are_polls CHECK (failures <= polls),
  CONSTRAINT polled_accounts_say_when CHECK ((polls = 0) = (last_poll_at IS NULL))
) STRICT, WITHOUT ROWID;
