import { readTopics } from "../../api/reads.ts";
import { refused } from "../act.tsx";
import { Act, counted, Cut, Empty, Go, Pager, State, Table, Time } from "../parts.tsx";
import { type ChangeRow, pageOf, readChanges } from "../reads.ts";
import type { Content, Visit } from "../visit.ts";

/** Each topic: the way its items go, whether they go at all, and who said so. */
export async function topicsPage(visit: Visit): Promise<Content> {
  const { db, runtime, now, url } = visit;
  const page = await readTopics(db, runtime, pageOf(url));
  if ("ok" in page) return refused(page, "/panel/topics");
  const names = page.items.map(({ module, topic }) => `${module}.${topic}`);
  const changes = await readChanges(db, names);
  return {
    title: "Topics",
    live: "rarely",
    body: (
      <>
        <p class="lead">
          A topic's items go by the queue, or by the drain inside the tick. A flip loses nothing and doubles nothing:
          what is leased stays where it is.
        </p>
        {page.items.length === 0 ? (
          <Empty>No module has a topic. A module declares its topics in code.</Empty>
        ) : (
          page.items.map((view) => {
            const { module, topic, path, pathVersion, paused, ready, leased, dead, oldestDueAt } = view;
            const name = `${module}.${topic}`;
            const args = { module, topic, expectedVersion: pathVersion };
            const other = path === "queue" ? "drain" : "queue";
            return (
              <section class="card" data-key={name} aria-labelledby={`topic-${name}`}>
                <h2 id={`topic-${name}`}>{name}</h2>
                <div class="switch">
                  {(["queue", "drain"] as const).map((way) => (
                    <span class={way === path ? "way on" : "way"} aria-current={way === path ? "true" : undefined}>
                      {way === path ? "● " : "○ "}
                      {way}
                    </span>
                  ))}
                  <Act
                    visit={visit}
                    command="topic.path"
                    args={{ ...args, path: other }}
                    label={`Flip to ${other}`}
                    about={name}
                  />
                  {paused ? <State word="paused" tone="warn" /> : <State word="claimed" tone="good" />}
                  <Act
                    visit={visit}
                    command={paused ? "topic.resume" : "topic.pause"}
                    args={args}
                    label={paused ? "Resume" : "Pause"}
                    about={name}
                  />
                </div>
                <p>
                  <Go visit={visit} grant="item:read" href={`/panel/items?of=${name}`}>{`${counted(ready)} ready`}</Go>
                  {", "}
                  <Go
                    visit={visit}
                    grant="item:read"
                    href={`/panel/items?of=${name}&state=leased`}
                  >{`${counted(leased)} leased or running`}</Go>
                  {", "}
                  <Go
                    visit={visit}
                    grant="item:read"
                    href={`/panel/dead-letters?of=${name}`}
                  >{`${counted(dead)} dead`}</Go>
                  {oldestDueAt === null ? null : (
                    <>
                      ; oldest due <Time at={oldestDueAt} now={now} />
                    </>
                  )}
                </p>
                <History name={name} changes={changes.filter(({ topic }) => topic === name)} now={now} />
              </section>
            );
          })
        )}
        <Pager url={url} next={page.nextCursor} />
      </>
    ),
  };
}

function History({ name, changes, now }: { name: string; changes: readonly ChangeRow[]; now: number }) {
  if (changes.length === 0) return <p class="hint">Never changed: it goes as its code says.</p>;
  return (
    <details>
      <summary>{`History of ${name}`}</summary>
      <Table label={`History of ${name}`} head={["Version", "Path", "Paused", "When", "By"]} numbers={["Version"]}>
        {changes.map(({ version, path, paused, changed_at, changed_by }) => (
          <tr data-key={`change-${version}`}>
            <td class="number">{version}</td>
            <td>{path}</td>
            <td>{paused === 1 ? "yes" : "no"}</td>
            <td>
              <Time at={changed_at} now={now} />
            </td>
            <td>
              <Cut text={changed_by} />
            </td>
          </tr>
        ))}
      </Table>
    </details>
  );
}
