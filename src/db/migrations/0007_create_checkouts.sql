-- checkouts: a reservation that a shopper has until `expires_at` to pay for. The embedded table that checkout expiry
-- works by default; an app that has its own gives the two statements instead (src/checkout/d1.ts).
-- Reservations are made and paid for by the app; they are expired by src/checkout/d1.ts only.
CREATE TABLE checkouts (
  id TEXT PRIMARY KEY,
  workspace TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('reserved', 'paid', 'expired')),
  expires_at INTEGER NOT NULL,
  expired_at INTEGER,
  CONSTRAINT workspace_is_a_uuid CHECK (length(workspace) = 36),
  CONSTRAINT expired_says_when CHECK ((status = 'expired') = (expired_at IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX checkouts_reserved ON checkouts (expires_at, id, workspace) WHERE status = 'reserved';
