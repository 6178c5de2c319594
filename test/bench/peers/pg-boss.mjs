import pg from "pg";
import { PgBoss } from "pg-boss";

const QUEUE = "item";

/** pg-boss on PostgreSQL. Finished jobs are kept, so what lies beside is half finished and half due in a year. */
export async function open(connectionString, handle, { notify = false, queue = {} }) {
  const boss = new PgBoss({ connectionString, useListenNotify: notify });
  boss.on("error", (error) => process.stderr.write(`${error.stack}\n`));
  await boss.start();
  const pool = new pg.Pool({ connectionString, max: 2 });
  await boss.createQueue(QUEUE);
  await boss.updateQueue(QUEUE, { notify, ...queue });
  return {
    enqueue: (payloads) => boss.insert(QUEUE, payloads.map((data) => ({ data }))),
    async work(options) {
      await boss.work(QUEUE, options, async (jobs) => {
        for (const { data } of jobs) await handle(data);
      });
    },
    stop: () => boss.offWork(QUEUE),
    async left() {
      const { rows } = await pool.query(
        "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = $1 AND state < 'completed' AND start_after <= now()) AS any",
        [QUEUE],
      );
      return rows[0].any;
    },
    clear: () => boss.deleteAllJobs(QUEUE),
    async fill(count) {
      await pool.query(
        `INSERT INTO pgboss.job (name, data, state, start_after, completed_on)
         SELECT $1, '{"n":0}',
           (CASE WHEN i % 2 = 0 THEN 'created' ELSE 'completed' END)::pgboss.job_state,
           now() + CASE WHEN i % 2 = 0 THEN interval '1 year' ELSE interval '-1 s' END,
           CASE WHEN i % 2 = 0 THEN NULL ELSE now() END
         FROM generate_series(1, $2::int) i`,
        [QUEUE, count],
      );
      await pool.query("VACUUM ANALYZE");
    },
  };
}
