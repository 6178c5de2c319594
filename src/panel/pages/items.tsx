import type { Context } from "hono";
import * as v from "valibot";
import { itemsQuery, listItems, showItem } from "../../api/items.ts";
import { refuse } from "../../core/errors.ts";
import type { ItemView } from "../../outbox/explain.ts";
import { refused } from "../act.tsx";
import { Act, Ask, Cut, Empty, Facts, Pager, State, Table, Time, Whole } from "../parts.tsx";
import { pageOf } from "../reads.ts";
import type { Content, Env, Visit } from "../visit.ts";
import { chosenTopic, TopicChoice } from "./topic-choice.tsx";

const STATES = ["ready", "leased", "running", "dead"] as const;
const TONES = { ready: "plain", leased: "plain", running: "good", dead: "bad" } as const;

const hrefOf = ({ id, place, state }: ItemView): string =>
  state === "dead"
    ? `/panel/dead-letters/${encodeURIComponent(id)}`
    : `/panel/items/${encodeURIComponent(place ?? id)}`;

/** Items of a topic by state, or the one that has a key: with why each is not running. */
export async function itemsPage(visit: Visit): Promise<Content> {
  const { db, runtime, now, url } = visit;
  const chosen = chosenTopic(visit);
  if (chosen === null) {
    return { title: "Items", body: <Empty>No module has a topic. A module declares its topics in code.</Empty> };
  }
  const key = url.searchParams.get("key") || undefined;
  const state = url.searchParams.get("state") || undefined;
  const { limit, cursor } = pageOf(url);
  const given = { limit: String(limit), module: chosen.module, topic: chosen.topic };
  const query = v.safeParse(itemsQuery, {
    ...given,
    ...(key !== undefined && { key }),
    ...(state !== undefined && { state }),
    ...(cursor !== undefined && { cursor }),
  });
  if (!query.success) return refused(refuse("bad_arguments", "query", query.issues[0].message), "/panel/items");
  const page = await listItems(db, runtime, query.output, now);
  if ("ok" in page) return refused(page, "/panel/items");
  return {
    title: "Items",
    body: (
      <>
        <TopicChoice visit={visit} chosen={chosen.name}>
          <label>
            State{" "}
            <select name="state">
              <option value="">{"ready, or any with a key"}</option>
              {STATES.map((one) => (
                <option value={one} selected={one === state}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <label>
            Key <input name="key" value={key ?? ""} autocomplete="off" maxlength={512} />
          </label>
        </TopicChoice>
        {page.items.length === 0 ? <NoItems name={chosen.name} state={state} itemKey={key} /> : null}
        {page.items.length === 0 ? null : (
          <Table
            label={`Items of ${chosen.name}`}
            head={["Item", "Key", "State", "Due", "Attempts", "Why it is not running, and what happens when"]}
            numbers={["Attempts"]}
          >
            {page.items.map((item) => (
              <tr data-key={item.id}>
                <th scope="row">
                  <a href={hrefOf(item)}>{item.id}</a>
                </th>
                <td>
                  <Cut text={item.key} href={hrefOf(item)} />
                </td>
                <td>
                  <State word={item.state} tone={TONES[item.state]} />
                </td>
                <td>
                  <Time at={item.dueAt} now={now} />
                </td>
                <td class="number">{item.attempts}</td>
                <td>
                  <Cut text={item.explanation} href={hrefOf(item)} />
                </td>
              </tr>
            ))}
          </Table>
        )}
        <Pager url={url} next={page.nextCursor} />
      </>
    ),
  };
}

function NoItems({ name, state, itemKey }: { name: string; state: string | undefined; itemKey: string | undefined }) {
  if (itemKey !== undefined) {
    return (
      <Empty>
        Nothing of {name} has the key {itemKey}: it is done, or there never was one. A dead one is found with the state
        dead.
      </Empty>
    );
  }
  return (
    <Empty>
      {`${name} has nothing that is ${state ?? "ready"}. Items come from the app's own batches, or from the command item enqueue.`}
    </Empty>
  );
}

/** One item: why it is not running, and what a person can do about it. */
export async function itemPage(visit: Visit, c: Context<Env>): Promise<Content> {
  const { db, runtime, now } = visit;
  const item = await showItem(db, runtime, c.req.param("id") ?? "", now);
  if ("ok" in item) return refused(item, "/panel/items");
  const { id, state, lastError } = item;
  return {
    title: "Item",
    body: (
      <>
        <p class="says">{item.explanation}</p>
        <Facts
          rows={[
            ["Id", <code>{id}</code>],
            ["Topic", <a href={`/panel/items?of=${item.module}.${item.topic}`}>{`${item.module}.${item.topic}`}</a>],
            ["Key", <Whole label="Key" text={item.key ?? "none"} />],
            ["State", <State word={state} tone={TONES[state]} />],
            ["Due", <Time at={item.dueAt} now={now} />],
            ["Lease until", <Time at={item.leaseUntil} now={now} />],
            ["Attempts", String(item.attempts)],
            ["Deliveries", item.deliveries === null ? "–" : String(item.deliveries)],
          ]}
        />
        <h2>Last error</h2>
        {lastError === null ? <Empty>It has not failed.</Empty> : <Whole label="Last error" text={lastError} />}
        {state === "ready" ? (
          <div class="row">
            <Act
              visit={visit}
              command="item.retry"
              args={{ id: item.place ?? id }}
              label="Retry now"
              about={id}
              primary
            />
            <Ask
              visit={visit}
              command="item.discard"
              args={{ id: item.place ?? id }}
              label="Discard"
              about={id}
              back={`/panel/items?of=${item.module}.${item.topic}`}
            />
          </div>
        ) : null}
        {state === "dead" ? (
          <p>
            <a href={`/panel/dead-letters/${encodeURIComponent(id)}`}>Its dead letter: payload, replay, discard</a>
          </p>
        ) : null}
      </>
    ),
  };
}
