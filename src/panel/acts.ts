/**
 * The commands that the panel has buttons for, and what it says of each. Who may run one, what it takes and what it
 * does stand in the registry; here are words only.
 */

type Args = Readonly<Record<string, unknown>>;
type Result = Readonly<Record<string, unknown>>;

export interface ActWords {
  /** The heading of the page that asks, and its button. */
  verb: string;
  /** Says what it will do; null = it is done at once, since it is undone by its opposite or destroys nothing. */
  asks: ((args: Args) => string) | null;
  /** It wants a person's reason. */
  reason?: true;
  /** Says what was done. */
  done(args: Args, result: Result): string;
}

const word = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value ?? null));
const topicOf = ({ module, topic }: Args) => `${word(module)}.${word(topic)}`;
const count = (value: unknown): number => (Array.isArray(value) ? value.length : 0);
const workspaces = (n: number) => (n === 1 ? "1 workspace" : `${n} workspaces`);

function settled(result: Result): string {
  const kept = count(result.kept);
  return `Settled ${workspaces(count(result.settled))}${kept === 0 ? "." : `; kept ${kept}: ${word(result.kept)}`}`;
}

export const ACTS: Readonly<Record<string, ActWords>> = {
  "topic.path": {
    verb: "Flip",
    asks: null,
    done: (args, { changed }) =>
      changed ? `${topicOf(args)} goes by the ${word(args.path)} now.` : `${topicOf(args)} went by it already.`,
  },
  "topic.pause": {
    verb: "Pause",
    asks: null,
    done: (args) => `${topicOf(args)} is paused: nothing claims its items.`,
  },
  "topic.resume": {
    verb: "Resume",
    asks: null,
    done: (args) => `${topicOf(args)} is resumed.`,
  },
  "item.retry": {
    verb: "Retry",
    asks: null,
    done: ({ id }, { sent }) =>
      sent ? `${word(id)} is due now and was sent.` : `${word(id)} is due now: a tick takes it.`,
  },
  "item.discard": {
    verb: "Discard the item",
    asks: ({ id }) => `The item ${word(id)} is deleted with its payload, and never runs. Nothing brings it back.`,
    done: ({ id }) => `${word(id)} is gone.`,
  },
  "dead-letter.replay": {
    verb: "Replay",
    asks: null,
    done: (_, { id }) => `It is back as the item ${word(id)}.`,
  },
  "dead-letter.discard": {
    verb: "Discard the dead letter",
    asks: ({ id }) => `The dead letter ${word(id)} is deleted with its payload. Nothing brings it back.`,
    done: ({ id }) => `${word(id)} is gone.`,
  },
  "job.stop": {
    verb: "Stop the job",
    asks: ({ id }) =>
      `${word(id)} is stopped until somebody resumes it: no slot is claimed, and what is at work ends at its next check. What it owes stays owed.`,
    reason: true,
    done: ({ id }, { changed }) => (changed ? `${word(id)} is stopped.` : `${word(id)} was stopped already.`),
  },
  "job.resume": {
    verb: "Resume",
    asks: null,
    done: ({ id }) => `${word(id)} goes on; its counts begin anew.`,
  },
  "job.fire": {
    verb: "Fire",
    asks: null,
    done: ({ id }, { slot, handedOver }) =>
      `${word(id)}: the slot ${word(slot)} was claimed${handedOver ? " and handed over." : ", and could not be handed over: see the log."}`,
  },
  "quarantine.settle": {
    verb: "Settle by hand",
    asks: ({ job, items }) =>
      `${workspaces(count(items))} that ${word(job)} holds in quarantine ${count(items) === 1 ? "is" : "are"} settled on your word: nothing asks the storefront about them again. What was chosen must be mended already.`,
    reason: true,
    done: (_, result) => settled(result),
  },
  "quarantine.revalidate": {
    verb: "Ask the storefront again",
    asks: ({ job, items }) =>
      `The storefront is asked about ${workspaces(count(items))} that ${word(job)} holds in quarantine. What it confirms is settled; the rest stays.`,
    reason: true,
    done: (_, result) => settled(result),
  },
  "schedule.enable": {
    verb: "Enable",
    asks: null,
    done: ({ name }) => `${word(name)} is on; it counts from now.`,
  },
  "schedule.disable": {
    verb: "Disable",
    asks: null,
    done: ({ name }) => `${word(name)} is off until it is enabled.`,
  },
  "schedule.remove": {
    verb: "Remove the schedule",
    asks: ({ name }) =>
      `${word(name)} is removed and fires no more, from the next tick on. Its firings and threads stay. A schedule of that name that is added later is another one.`,
    done: ({ name }) => `${word(name)} is removed.`,
  },
  "schedule.fire": {
    verb: "Fire",
    asks: null,
    done: ({ name }, { slot, outcome }) => `${word(name)} was fired for ${word(slot)}: ${word(outcome)}.`,
  },
  "run.cancel": {
    verb: "Cancel the run",
    asks: ({ id }) =>
      `The run ${word(id)} is ended as cancelled. A command that has begun is not undone: what it did stays done.`,
    done: ({ id }) => `${word(id)} is cancelled.`,
  },
  "run.confirm": {
    verb: "Confirm",
    asks: null,
    done: (_, { runId }) => `It runs as ${word(runId)}.`,
  },
  dispatch: {
    verb: "Send",
    asks: null,
    done: (_, { outcome }) => (outcome === "admitted" ? "It runs: the result comes here." : `It was ${word(outcome)}.`),
  },
};
