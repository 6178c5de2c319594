import { Queue, Worker } from "bullmq";

const QUEUE = "item";
/** Jobs of one call that fills. */
const FILL_PAGE = 10_000;
const YEAR_MS = 365 * 24 * 3_600_000;

/** BullMQ on Redis. What lies beside is delayed by a year. */
export async function open(address, handle) {
  const { hostname: host, port } = new URL(address);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  // Without this it keeps each finished job for ever, and the server's memory grows with them.
  const defaultJobOptions = { removeOnComplete: true };
  const queue = new Queue(QUEUE, { connection, defaultJobOptions });
  let worker = null;
  return {
    enqueue: (payloads) => queue.addBulk(payloads.map((data) => ({ name: QUEUE, data }))),
    async work(options) {
      worker = new Worker(QUEUE, async ({ data }) => handle(data), { connection, ...options });
      worker.on("error", (error) => process.stderr.write(`${error.stack}\n`));
    },
    async stop() {
      await worker?.close();
      worker = null;
    },
    async left() {
      const { waiting = 0, active = 0 } = await queue.getJobCounts("waiting", "active");
      return waiting + active > 0;
    },
    clear: () => queue.obliterate({ force: true }),
    async fill(count) {
      for (let left = count; left > 0; left -= FILL_PAGE) {
        await queue.addBulk(
          Array.from({ length: Math.min(left, FILL_PAGE) }, () => ({
            name: QUEUE,
            data: { n: 0 },
            opts: { delay: YEAR_MS },
          })),
        );
      }
    },
  };
}
