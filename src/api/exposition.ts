/** Prometheus's text format, version 0.0.4. */

export const METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8";

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

/** All samples of one name. */
export interface Family {
  name: string;
  type: "gauge" | "counter";
  help: string;
  samples: readonly Sample[];
}

/** Writes families, each with its head. One without samples is left out. */
export function expose(families: readonly Family[]): string {
  return families
    .filter(({ samples }) => samples.length > 0)
    .map(({ name, type, help, samples }) =>
      [
        `# HELP ${name} ${escapeHelp(help)}`,
        `# TYPE ${name} ${type}`,
        ...samples.map(({ labels, value }) => `${name}${written(labels)} ${value}`),
        "",
      ].join("\n"),
    )
    .join("");
}

function written(labels: Record<string, string>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(value)}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

const escapeHelp = (text: string) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
const escapeLabel = (text: string) => escapeHelp(text).replaceAll('"', '\\"');
