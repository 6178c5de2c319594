import { optionsOf } from "./arguments.ts";
import type { Entry } from "./catalog.ts";

/** Scripts for shells. The words stand in the script: they are those of the deployment when it is printed. */

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** Only such words go into a script, which a shell runs: a deployment could list others. */
const SAFE = /^[A-Za-z0-9][\w.-]*$/;

/** The second words of each first word, and the options of each pair. */
interface Words {
  verbs: Map<string, string[]>;
  options: Map<string, string[]>;
}

const GLOBAL = ["--url", "--token", "--json", "--help"];

function wordsOf(entries: readonly Entry[], own: readonly string[]): Words {
  const verbs = new Map<string, string[]>(own.map((word) => [word, []]));
  verbs.set("completion", [...SHELLS]);
  const options = new Map<string, string[]>();
  for (const { words, args } of entries) {
    if (!words.every((word) => SAFE.test(word))) continue;
    const [noun = "", verb] = words;
    const before = verbs.get(noun) ?? [];
    verbs.set(noun, verb === undefined ? before : [...before, verb]);
    const named = [...optionsOf(args ?? {}).keys()].filter((name) => SAFE.test(name)).map((name) => `--${name}`);
    options.set(words.slice(0, 2).join(" "), [...named, ...GLOBAL]);
  }
  return { verbs, options };
}

/** The script of a shell. @param own words that need no deployment */
export function completionScript(shell: Shell, entries: readonly Entry[], own: readonly string[]): string {
  const words = wordsOf(entries, own);
  if (shell === "bash") return bash(words);
  return shell === "zsh" ? zsh(words) : fish(words);
}

const cases = (all: Map<string, string[]>, line: (key: string, words: string) => string) =>
  [...all].filter(([, words]) => words.length > 0).map(([key, words]) => line(key, words.join(" ")));

function bash({ verbs, options }: Words): string {
  return `# duework completion bash: put "source <(duework completion bash)" into ~/.bashrc
_duework() {
  local cur="\${COMP_WORDS[COMP_CWORD]}" words=""
  if [[ "$cur" == -* ]]; then
    words="${GLOBAL.join(" ")}"
    case "\${COMP_WORDS[1]}" in
${cases(oneWord(options), (key, all) => `      "${key}") words="${all}" ;;`).join("\n")}
    esac
    case "\${COMP_WORDS[1]} \${COMP_WORDS[2]}" in
${cases(twoWords(options), (key, all) => `      "${key}") words="${all}" ;;`).join("\n")}
    esac
  elif [[ $COMP_CWORD -eq 1 ]]; then
    words="${[...verbs.keys()].join(" ")}"
  elif [[ $COMP_CWORD -eq 2 ]]; then
    case "\${COMP_WORDS[1]}" in
${cases(verbs, (key, all) => `      "${key}") words="${all}" ;;`).join("\n")}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _duework duework
`;
}

function zsh({ verbs, options }: Words): string {
  return `#compdef duework
# duework completion zsh: put "source <(duework completion zsh)" into ~/.zshrc, behind compinit
_duework() {
  if [[ "\${words[CURRENT]}" == -* ]]; then
    case "\${words[2]} \${words[3]}" in
${cases(twoWords(options), (key, all) => `      ("${key}") compadd -- ${all}; return ;;`).join("\n")}
    esac
    case "\${words[2]}" in
${cases(oneWord(options), (key, all) => `      ("${key}") compadd -- ${all}; return ;;`).join("\n")}
    esac
    compadd -- ${GLOBAL.join(" ")}
  elif (( CURRENT == 2 )); then
    compadd -- ${[...verbs.keys()].join(" ")}
  elif (( CURRENT == 3 )); then
    case "\${words[2]}" in
${cases(verbs, (key, all) => `      ("${key}") compadd -- ${all} ;;`).join("\n")}
    esac
  fi
}
compdef _duework duework
`;
}

function fish({ verbs, options }: Words): string {
  const pairs = cases(twoWords(options), (key, all) => {
    const [noun = "", verb = ""] = key.split(" ");
    const seen = `__fish_seen_subcommand_from ${noun}; and __fish_seen_subcommand_from ${verb}`;
    return `complete -c duework -f -n '${seen}' -a '${all}'`;
  });
  return `# duework completion fish: put "duework completion fish | source" into config.fish
complete -c duework -f -n '__fish_use_subcommand' -a '${[...verbs.keys()].join(" ")}'
${cases(verbs, (key, all) => `complete -c duework -f -n '__fish_seen_subcommand_from ${key}; and test (count (commandline -opc)) -eq 2' -a '${all}'`).join("\n")}
${pairs.join("\n")}
`;
}

const oneWord = (options: Map<string, string[]>) => new Map([...options].filter(([key]) => !key.includes(" ")));
const twoWords = (options: Map<string, string[]>) => new Map([...options].filter(([key]) => key.includes(" ")));
