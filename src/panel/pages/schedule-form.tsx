import type { Child } from "hono/jsx";
import { Empty, Time } from "../parts.tsx";
import type { Visit } from "../visit.ts";

/** The form that adds a schedule. */

export interface Draft {
  name: string;
  cron: string;
  timeZone: string;
  text: string;
  channel: string;
  thread: string;
  actions: string;
  channels: string;
  scopes: string;
}

/** What a form gives, or how it begins. */
export function draftOf(fields: Record<string, unknown>): Draft {
  const text = (name: string, otherwise = "") => {
    const value = fields[name];
    return typeof value === "string" ? value : otherwise;
  };
  return {
    name: text("name").trim(),
    cron: text("cron").trim(),
    timeZone: text("timeZone", "UTC").trim() || "UTC",
    text: text("text"),
    channel: text("channel", "inbox:schedules").trim(),
    thread: text("thread", "new"),
    actions: text("actions"),
    channels: text("channels"),
    scopes: text("scopes"),
  };
}

const listOf = (text: string) => text.split(/[\s,]+/).filter((one) => one !== "");

export const grantsOf = ({ actions, channels, scopes }: Draft) => ({
  actions: listOf(actions),
  channels: listOf(channels),
  scopes: listOf(scopes),
});

interface FieldProps {
  name: keyof Draft;
  label: string;
  draft: Draft;
  hint?: string;
  required?: boolean;
}

function Field({ name, label, draft, hint, required = false }: FieldProps) {
  return (
    <div class="field">
      <label for={`add-${name}`}>{label}</label>
      <input
        id={`add-${name}`}
        name={name}
        value={draft[name]}
        required={required}
        autocomplete="off"
        spellcheck={false}
        aria-describedby={hint === undefined ? undefined : `add-${name}-hint`}
      />
      {hint === undefined ? null : (
        <p id={`add-${name}-hint`} class="hint">
          {hint}
        </p>
      )}
    </div>
  );
}

interface AddProps {
  visit: Visit;
  draft: Draft;
  problem: string | null;
  /** The preview. */
  children: Child;
}

export function AddForm({ visit, draft, problem, children }: AddProps) {
  return (
    <section aria-labelledby="add">
      <h2 id="add">Add a schedule</h2>
      <form method="post" action="/panel/schedules" class="stack" data-still>
        {problem === null ? null : (
          <p class="notice bad" role="alert">
            {problem}
          </p>
        )}
        <input type="hidden" name="csrf" value={visit.csrf} />
        <div class="fields">
          <Field name="name" label="Name" draft={draft} required hint="a to z, 0 to 9 and -" />
          <Field
            name="cron"
            label="Cron"
            draft={draft}
            required
            hint="Minute, hour, day of month, month, day of week"
          />
          <Field name="timeZone" label="Time zone" draft={draft} hint="Such as Europe/Prague" />
        </div>
        <div data-preview="/panel/schedules/preview" role="status" aria-label="The next five fires">
          {children}
        </div>
        <div class="field">
          <label for="add-text">Text</label>
          <textarea id="add-text" name="text" rows={3} required aria-describedby="add-text-hint">
            {draft.text}
          </textarea>
          <p id="add-text-hint" class="hint">
            What is dispatched when it fires: a command's words and its arguments, such as webhooks report.
          </p>
        </div>
        <div class="fields">
          <Field name="actions" label="Granted actions" draft={draft} hint="Each by name, such as webhooks:read" />
          <Field name="channels" label="Granted channels" draft={draft} />
          <Field name="scopes" label="Granted scopes" draft={draft} />
        </div>
        <div class="fields">
          <Field name="channel" label="Channel" draft={draft} required />
          <div class="field">
            <label for="add-thread">Thread</label>
            <select id="add-thread" name="thread">
              <option value="new" selected={draft.thread !== "standing"}>
                a new one for each firing
              </option>
              <option value="standing" selected={draft.thread === "standing"}>
                one that stands
              </option>
            </select>
          </div>
        </div>
        <div class="row">
          <button type="submit" class="primary">
            Add
          </button>
        </div>
      </form>
    </section>
  );
}

/** When it fires next, by the clock of its zone and in UTC. */
export function Fires({ fires, now }: { fires: readonly { at: string; local: string }[]; now: number }) {
  if (fires.length === 0) return <Empty>It does not fire: it is off, or cannot be read.</Empty>;
  return (
    <ol class="fires">
      {fires.map(({ at, local }) => (
        <li data-key={at}>
          <span>{local}</span> · UTC <Time at={at} now={now} />
        </li>
      ))}
    </ol>
  );
}
