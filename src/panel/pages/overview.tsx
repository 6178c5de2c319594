import { readTopics } from "../../api/reads.ts";
import { DEGRADED_MS } from "../../tick/needs.ts";
import type { TickRow } from "../../tick/record.ts";
import { Bars } from "../charts.tsx";
import { type Count, counted, Empty, Go, State, stamp, Table, Time } from "../parts.tsx";
import { readLatestTicks } from "../reads.ts";
import { type Content, canRead, type Visit } from "../visit.ts";
import { Needs, needsOf } from "./needs.tsx";

/** Topics that the overview counts at most: more are on their own page. */
const TOPICS_SHOWN = 200;

type Topics = {
  key: string;
  path: string;
  paused: boolean;
  ready: Count;
  leased: Count;
  dead: Count;
  oldest: string | null;
}[];
/** What needs a person first; then how much waits, what the ticks do, and what they cost. */
export async function overviewPage(visit: Visit): Promise<Content> {
  const [ticks, topics, needs] = await Promise.all([
    canRead(visit, "tick:read") ? readLatestTicks(visit.db) : null,
    canRead(visit, "topic:read") ? topicsOf(visit) : null,
    needsOf(visit),
  ]);
  return {
    title: "Overview",
    live: "rarely",
    body: (
      <>
        <Needs needs={needs} now={visit.now} />
        {topics === null ? null : <Backlog visit={visit} topics={topics} />}
        {ticks === null ? null : <Ticks ticks={ticks} now={visit.now} />}
      </>
    ),
  };
}

async function topicsOf({ db, runtime }: Visit): Promise<Topics> {
  const page = await readTopics(db, runtime, { limit: TOPICS_SHOWN });
  if ("ok" in page) return [];
  return page.items.map(({ module, topic, oldestDueAt, ...rest }) => ({
    key: `${module}.${topic}`,
    oldest: oldestDueAt,
    ...rest,
  }));
}

function Backlog({ visit, topics }: { visit: Visit; topics: Topics }) {
  return (
    <section aria-labelledby="backlog">
      <h2 id="backlog">Backlog</h2>
      {topics.length === 0 ? (
        <Empty>No module has a topic. A module declares its topics in code.</Empty>
      ) : (
        <Table
          label="Backlog of each topic"
          head={["Topic", "Path", "Ready", "Leased", "Dead", "Oldest due"]}
          numbers={["Ready", "Leased", "Dead"]}
        >
          {topics.map(({ key, path, paused, ready, leased, dead, oldest }) => (
            <tr data-key={key}>
              <th scope="row">
                <Go visit={visit} grant="item:read" href={`/panel/items?of=${key}`}>
                  {key}
                </Go>
              </th>
              <td>{paused ? <State word="paused" tone="warn" /> : path}</td>
              <td class="number">{counted(ready)}</td>
              <td class="number">{counted(leased)}</td>
              <td class="number">{counted(dead)}</td>
              <td>
                <Time at={oldest} now={visit.now} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </section>
  );
}

function Ticks({ ticks, now }: { ticks: readonly TickRow[]; now: number }) {
  const [latest] = ticks;
  const shown = [...ticks].reverse();
  const times = shown.map(({ at }) => stamp(at).slice(11, 16));
  const values = (of: (tick: TickRow) => number) => shown.map(of);
  return (
    <section aria-labelledby="ticks">
      <h2 id="ticks">Ticks</h2>
      {latest === undefined ? (
        <Empty>No tick has run yet. The cron trigger fires one a minute; locally npm run dev does.</Empty>
      ) : (
        <>
          <p>
            Last tick <Time at={latest.started_at} now={now} /> <Pulse latest={latest} now={now} />
          </p>
          <ol class="strip" aria-label="The latest ticks, the oldest first">
            {shown.map((tick) => (
              <Beat tick={tick} now={now} />
            ))}
          </ol>
          <div class="charts">
            <Bars
              what="Items that each tick put under way"
              times={times}
              series={[
                { name: "sent", tone: "one", values: values(({ report }) => report.sent) },
                { name: "drained", tone: "two", values: values(({ report }) => report.drained) },
              ]}
            />
            <Bars
              what="What each tick cost, in calls"
              times={times}
              series={[
                { name: "statements", tone: "one", values: values(({ report }) => report.queries) },
                { name: "subrequests", tone: "three", values: values(({ report }) => report.subrequests) },
              ]}
            />
            <Bars
              what="How long each tick took, ms"
              times={times}
              series={[
                {
                  name: "ms",
                  tone: "two",
                  values: values(({ ended_at, started_at }) => (ended_at ?? started_at) - started_at),
                },
              ]}
            />
          </div>
          <p>
            <a href="/panel/ticks">The same as a table</a>
          </p>
        </>
      )}
    </section>
  );
}

function Pulse({ latest, now }: { latest: TickRow; now: number }) {
  const late = now - latest.started_at > DEGRADED_MS;
  return <State word={late ? "degraded" : "ok"} tone={late ? "bad" : "good"} />;
}

function Beat({ tick, now }: { tick: TickRow; now: number }) {
  const { id, at, ended_at, wall_until, report } = tick;
  const died = ended_at === null && wall_until <= now;
  const [letter, word, tone] = died
    ? ["X", "died", "bad"]
    : ended_at === null
      ? ["…", "running", "plain"]
      : report.failed > 0
        ? ["F", `${report.failed} parts failed`, "warn"]
        : ["T", "ended", "good"];
  const label = `${stamp(at)}: ${word}`;
  return (
    <li data-key={`tick-${id}`}>
      <a class={`slot ${tone}`} href={`/panel/ticks/${id}`} title={label} aria-label={label}>
        {letter}
      </a>
    </li>
  );
}
