import http from "node:http";

/**
 * One peer in a process of its own, so that it can be killed and its processor time read. Driven over HTTP, as our own
 * Worker is: `node child.mjs <peer> <its server's address> <port> <its options>`. Answers JSON.
 */
const [peer, server, port, options] = process.argv.slice(2);
const { open } = await import(`./${peer}.mjs`);

const ran = { times: 0, ids: new Set(), late: [] };
const agent = new http.Agent({ keepAlive: true });

/** One item's work: nothing but remembering that it ran, or a POST of its number. */
function handle(payload) {
  ran.times += 1;
  ran.ids.add(payload.n);
  if (ran.late.length < 10_000) ran.late.push(Date.now() - payload.at);
  return payload.url === undefined ? undefined : post(payload.url, String(payload.n));
}

function post(url, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", agent }, (response) => {
      response.resume();
      response.on("end", resolve);
    });
    request.on("error", reject);
    request.end(body);
  });
}

const queue = await open(server, handle, JSON.parse(options));
let next = 0;
const payloads = (count, url) =>
  Array.from({ length: count }, () => ({ n: next++, at: Date.now(), ...(url !== undefined && { url }) }));

const commands = {
  /** Puts `count` items in, `page` at a time. */
  async enqueue({ count, page, url }) {
    for (let left = count; left > 0; left -= page) await queue.enqueue(payloads(Math.min(left, page), url));
  },
  /** One item, as an application would put it in. */
  one: () => queue.enqueue(payloads(1)),
  work: (settings) => queue.work(settings),
  stop: () => queue.stop(),
  left: async () => ({ any: (await queue.left()) ? 1 : 0 }),
  ran: async () => ({ times: ran.times, distinct: ran.ids.size, late: ran.late }),
  async clear() {
    await queue.clear();
    ran.times = 0;
    ran.ids.clear();
    ran.late = [];
  },
  fill: ({ count }) => queue.fill(count),
};

http
  .createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", async () => {
      try {
        const body = Buffer.concat(chunks).toString();
        const answer = await commands[request.url.slice(1)](body === "" ? {} : JSON.parse(body));
        response.end(JSON.stringify(answer ?? {}));
      } catch (error) {
        response.statusCode = 500;
        response.end(String(error?.stack ?? error));
      }
    });
  })
  .listen(Number(port), "127.0.0.1");
