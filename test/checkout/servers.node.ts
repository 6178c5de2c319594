import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  method: string;
  path: string;
  headers: IncomingHttpHeaders;
  body: string;
}

export interface TestServer {
  url: string;
  /** What was asked, in order. */
  asked: Asked[];
  close(): Promise<void>;
}

/** A server on the loopback that answers as it is told, however badly. */
export async function serve(answer: (response: ServerResponse, asked: Asked) => unknown): Promise<TestServer> {
  const asked: Asked[] = [];
  const server = createServer(async (request, response) => {
    const one = { method: request.method ?? "", path: request.url ?? "", headers: request.headers, body: "" };
    one.body = await read(request);
    asked.push(one);
    answer(response, one);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(() => resolve()));
    },
  };
}

async function read(request: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString();
}

export const sendJson = (response: ServerResponse, value: unknown, status = 200) =>
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));

/** Answers that no client should take, by name. A secret that they send back must not be told on. */
export const BAD_ANSWERS: Record<
  "hang" | "drip" | "html" | "huge" | "cut" | "latin" | "hangUp",
  (response: ServerResponse) => unknown
> = {
  hang: () => {},
  drip: (response) => {
    response.writeHead(200, { "content-type": "application/json" });
    const timer = setInterval(() => response.write(" "), 20);
    response.on("close", () => clearInterval(timer));
  },
  html: (response) => response.writeHead(200, { "content-type": "text/html" }).end("<html>Sign in</html>"),
  huge: (response) => response.writeHead(200).end(`[${" ".repeat(10 * 1_024 * 1_024)}]`),
  cut: (response) => {
    response.writeHead(200, { "content-length": "100" });
    response.write("[");
    setTimeout(() => response.destroy(), 20);
  },
  latin: (response) => response.writeHead(200).end(Buffer.from([0x22, 0xe9, 0x22])),
  hangUp: (response) => response.destroy(),
};
