/** For one request, ms: longer than a tick's wall. */
const REQUEST_MS = 60_000;

/** A runtime's HTTP API, as the programs of this folder use it. */
export interface Client {
  /**
   * Runs a command and answers its result.
   * @throws Error with the refusal's code and sentence
   */
  command<Result>(name: string, args: unknown): Promise<Result>;
  read<Body>(pathAndQuery: string): Promise<Body>;
}

export function createClient(url: string, token: string, signal?: AbortSignal): Client {
  const request = async (pathAndQuery: string, init: RequestInit = {}): Promise<unknown> => {
    const answer = await fetch(url + pathAndQuery, {
      ...init,
      headers: { ...init.headers, authorization: `Bearer ${token}` },
      signal: within(signal),
    });
    const body = (await answer.json()) as { code?: string; detail?: string };
    if (!answer.ok) throw new Error(`${pathAndQuery} answered ${answer.status} ${body.code}: ${body.detail}`);
    return body;
  };
  return {
    async command<Result>(name: string, args: unknown) {
      const body = JSON.stringify(args);
      const headers = { "content-type": "application/json" };
      const answer = await request(`/api/commands/${name}`, { method: "POST", headers, body });
      return (answer as { result: Result }).result;
    },
    read: <Body>(pathAndQuery: string) => request(pathAndQuery) as Promise<Body>,
  };
}

/**
 * Fires a tick of a local runtime and waits for its end. The tick counts from the later of `time` and the clock.
 * @throws Error when the tick could not be fired, or threw
 */
export async function fireTick(url: string, time: number, signal?: AbortSignal): Promise<void> {
  const query = `cron=*+*+*+*+*&time=${time}&format=json`;
  const answer = await fetch(`${url}/cdn-cgi/handler/scheduled?${query}`, { signal: within(signal) });
  const body = await answer.text();
  if (!answer.ok || !body.includes('"outcome":"ok"')) throw new Error(`a tick answered ${answer.status}: ${body}`);
}

function within(signal: AbortSignal | undefined): AbortSignal {
  const timeout = AbortSignal.timeout(REQUEST_MS);
  return signal === undefined ? timeout : AbortSignal.any([signal, timeout]);
}
