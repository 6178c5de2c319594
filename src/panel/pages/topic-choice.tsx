import type { Child } from "hono/jsx";
import { splitTopicName } from "../../core/names.ts";
import type { Visit } from "../visit.ts";

/** Which topic a list is of: the one that the address names, or the first of the code. */
export function chosenTopic({ url, runtime }: Visit): { name: string; module: string; topic: string } | null {
  const name = url.searchParams.get("of") ?? [...runtime.topics.keys()][0];
  return name === undefined ? null : { name, ...splitTopicName(name) };
}

/** The form that chooses it; further fields stand inside. */
export function TopicChoice({ visit, chosen, children }: { visit: Visit; chosen: string; children?: Child }) {
  const names = [...visit.runtime.topics.keys()];
  return (
    <form method="get" action={visit.url.pathname} class="filter" data-still>
      <label>
        Topic{" "}
        <select name="of">
          {[...names, ...(names.includes(chosen) ? [] : [chosen])].map((name) => (
            <option value={name} selected={name === chosen}>
              {name}
            </option>
          ))}
        </select>
      </label>
      {children}
      <button type="submit">Show</button>
    </form>
  );
}
