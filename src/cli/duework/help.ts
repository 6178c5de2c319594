import { optionsOf, toldOption } from "./arguments.ts";
import { type Entry, nearest } from "./catalog.ts";
import { exampleOf } from "./examples.ts";
import { type Screen, styled } from "./screen.ts";
import { cut, visible } from "./visible.ts";

/** What the program says of itself, and of what a deployment can be asked. */

export const HELP = `duework <noun> <verb> [arguments] [flags]

Asks a deployment of duework. What it can be asked comes from that deployment.

  duework commands              lists all of it
  duework <noun> [<verb>] --help  says what that takes, with an example
  duework status [--check]      how it stands, and what needs a person (--check: then it exits 1)
  duework watch [--every S]     the same, live; q or ctrl-c ends it
  duework completion SHELL      a script for bash, zsh or fish
  duework init [--write]        prints, or writes, what a Worker that imports duework needs
  duework --version

Flags
  --url URL              the deployment (DUEWORK_URL, else http://127.0.0.1:8787)
  --token TOKEN          your token (DUEWORK_TOKEN, or a file that holds it: DUEWORK_TOKEN_FILE).
                         Under "npm run dev" it is in .dev.token: DUEWORK_TOKEN_FILE=.dev.token
  --json                 the answer as it came
  --all                  every page of a list, up to 10,000 rows
  --idempotency-key KEY  the same key and command within 24 hours run once
  --help

An argument is a value in its place, --name value, name=value, or name:=JSON. Dots lead into an object
(--grants.actions webhooks:read). A list is given by repeating its name, or with commas.

Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable.

Examples
  duework topics
  duework topic path webhooks.deliver queue
  duework item explain ID
  duework schedule add nightly "0 3 * * *" --text "webhooks report" --grants.actions webhooks:read
`;

const formOf = ({ words }: Entry) => words.join(" ");

/** Everything that can be asked, a line each. */
export function listed(entries: readonly Entry[], screen: Screen): string {
  if (screen.columns === null) return entries.map((entry) => `${formOf(entry)}\t${visible(entry.help)}\n`).join("");
  const { columns } = screen;
  const width = Math.max(0, ...entries.map((entry) => formOf(entry).length));
  return entries
    .map((entry) => {
      const help = cut(visible(entry.help), Math.max(20, columns - width - 2));
      return `${styled(screen, "bold", formOf(entry).padEnd(width))}  ${help}\n`;
    })
    .join("");
}

const isNeeded = ({ args }: Entry, name: string) => Array.isArray(args?.required) && args.required.includes(name);

/** `duework schedule add NAME CRON --text TEXT [flags]` */
export function usageOf(entry: Entry): string {
  const { positional, args } = entry;
  const places = positional.map((name) => (isNeeded(entry, name) ? capitals(name) : `[${capitals(name)}]`));
  const required = Array.isArray(args?.required) ? args.required.map(String) : [];
  const named = required.filter((name) => !positional.includes(name)).map((name) => `--${name} ${capitals(name)}`);
  return visible(["duework", formOf(entry), ...places, ...named].join(" "));
}

const capitals = (name: string) => name.replace(/[A-Z]/g, (letter) => `-${letter}`).toUpperCase();

/** What one thing takes. */
export function helpOf(entry: Entry, screen: Screen): string {
  const { ask, args, grant } = entry;
  const options =
    args === null ? [] : [...optionsOf(args)].filter(([name]) => name !== "module" || ask.kind !== "read");
  const width = Math.max(0, ...options.map(([name]) => name.length));
  const lines = options.map(([name, { schema, kinds }]) => {
    const needed = isNeeded(entry, name) ? "  needed" : "";
    return `  --${visible(name).padEnd(width)}  ${visible(toldOption(schema, kinds))}${needed}`;
  });
  const what = ask.kind === "read" ? `GET ${ask.path}` : `${ask.effect}, POST /api/commands/${ask.name}`;
  const secret = ask.kind === "command" && ask.secret ? ["Its answer holds a secret, which is shown once."] : [];
  return [
    visible(entry.help),
    ...secret,
    "",
    styled(screen, "bold", usageOf(entry)),
    ...(args === null ? ["  takes whatever the deployment does: --name value, or name:=JSON"] : lines),
    "",
    `Grant: ${visible(grant)} (${visible(what)})`,
    "Example",
    `  ${exampleOf(entry)}`,
    "",
  ].join("\n");
}

/** Why words lead nowhere, and what was likely meant. */
export function nowhere(words: readonly string[], entries: readonly Entry[], own: readonly string[]): string {
  const [noun = ""] = words;
  const said = words.slice(0, 2).join(" ");
  const verbs = entries.filter((entry) => entry.words[0] === noun && entry.words.length > 1);
  const ofNoun = verbs.map((entry) => entry.words.slice(1).join(" "));
  if (verbs.length > 0 && words.length === 1) return `${noun} takes one of: ${ofNoun.join(", ")}`;
  const near = nearest(said, [...own, ...entries.map(formOf)]);
  const list = verbs.length > 0 ? ` (${noun} takes ${ofNoun.join(", ")})` : "";
  return `there is no command "${visible(said.slice(0, 80))}"${near === null ? list : `: was "${near}" meant?`}`;
}
