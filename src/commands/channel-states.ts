/** Every statement that writes `channel_states`: what is known of a channel outside. */

export interface ChannelState {
  channel: string;
  /** Its address outside; null = not known. */
  external: string | null;
  /** Since when nothing can be posted there, ms; null = it was never found so, or it has come back. */
  gone_at: number | null;
  /** Why it is gone. */
  detail: string;
  checked_at: number;
}

/** What is known of channels. One that nothing is known of has no row. */
export function readStates(db: D1Database, channels: readonly string[]): D1PreparedStatement {
  return db
    .prepare("SELECT * FROM channel_states WHERE channel IN (SELECT value FROM json_each(?1))")
    .bind(JSON.stringify(channels));
}

/** The channel that has an address outside. A name that was found comes before one that stands for the address itself. */
export function findByAddress(db: D1Database, external: string): D1PreparedStatement {
  return db
    .prepare(
      `SELECT channel FROM channel_states WHERE external = ?1
       ORDER BY channel LIKE '%:' || lower(?1), checked_at DESC LIMIT 1`,
    )
    .bind(external);
}

/** Says that a channel is there, and where. It is not gone, or not any more. */
export function putFound(db: D1Database, channel: string, external: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO channel_states (channel, external, checked_at) VALUES (?1, ?2, ?3)
       ON CONFLICT (channel) DO UPDATE SET external = ?2, gone_at = NULL, detail = '', checked_at = ?3`,
    )
    .bind(channel, external, now);
}

/** Says that nothing can be posted in a channel, and why. The first such instant stays. */
export function putGone(db: D1Database, channel: string, detail: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO channel_states (channel, gone_at, detail, checked_at) VALUES (?1, ?3, ?2, ?3)
       ON CONFLICT (channel) DO UPDATE SET gone_at = coalesce(gone_at, ?3), detail = ?2, checked_at = ?3`,
    )
    .bind(channel, detail, now);
}

/** Keeps a channel's address, where none is known. Says nothing of whether one may post there. */
export function noteAddress(db: D1Database, channel: string, external: string, now: number): D1PreparedStatement {
  return db
    .prepare(
      `INSERT INTO channel_states (channel, external, checked_at) VALUES (?1, ?2, ?3)
       ON CONFLICT (channel) DO UPDATE SET external = ?2 WHERE external IS NULL`,
    )
    .bind(channel, external, now);
}
