import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

/** graphile-worker on PostgreSQL. Finished jobs are deleted, so what lies beside is due in a year. */
export async function open(connectionString, handle) {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.migrate();
  const pool = new pg.Pool({ connectionString, max: 2 });
  let runner = null;
  return {
    enqueue: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: "item", payload }))),
    async work(worker) {
      runner = await run({
        preset: { worker: { connectionString, ...worker } },
        taskList: { item: (payload) => handle(payload) },
        noHandleSignals: true,
        // Silence: its default logger prints a line a job.
        logger: quiet(),
      });
    },
    async stop() {
      await runner?.stop();
      runner = null;
    },
    async left() {
      const { rows } = await pool.query(
        "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE run_at <= now()) AS any",
      );
      return rows[0].any;
    },
    clear: () => pool.query("TRUNCATE graphile_worker._private_jobs"),
    async fill(count) {
      // Names the task, which has an id from its first job on.
      await utils.addJob("item", { n: 0 }, { runAt: new Date(Date.now() + 3_600_000) });
      const { rows } = await pool.query("SELECT id FROM graphile_worker._private_tasks WHERE identifier = 'item'");
      await pool.query(
        `INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at)
         SELECT $1, '{"n":0}', now() + interval '1 year' + i * interval '1 ms' FROM generate_series(1, $2::int) i`,
        [rows[0].id, count],
      );
      await pool.query("VACUUM ANALYZE graphile_worker._private_jobs");
    },
  };
}

function quiet() {
  return new Logger(() => () => {});
}
