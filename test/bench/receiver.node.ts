import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

/** A local server that items POST their number to. */
export interface Receiver {
  readonly url: string;
  /** How often each number has come, since the last `forget`. */
  readonly received: ReadonlyMap<string, number>;
  /** When a number last came that had not come before, ms. */
  lastNew(): number;
  /** How long each answer takes, ms. */
  answerAfter(ms: number): void;
  forget(): void;
  stop(): void;
}

export async function startReceiver(): Promise<Receiver> {
  const received = new Map<string, number>();
  let lastNew = 0;
  let delay = 0;
  const server = createServer((request, response) => {
    let body = "";
    request.setEncoding("latin1");
    request.on("data", (chunk: string) => {
      body += chunk;
    });
    request.on("end", () => {
      const times = received.get(body) ?? 0;
      received.set(body, times + 1);
      if (times === 0) lastNew = Date.now();
      if (delay === 0) response.end();
      else setTimeout(() => response.end(), delay);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/`,
    received,
    lastNew: () => lastNew,
    answerAfter(ms) {
      delay = ms;
    },
    forget: () => received.clear(),
    stop() {
      server.closeAllConnections();
      server.close();
    },
  };
}
