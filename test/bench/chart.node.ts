import { type Measured, spreadOf } from "./report.node.ts";

/** px */
const WIDTH = 760;
const LABELS = 290;
const ROW = 24;
const TOP = 40;
const ROOM_FOR_FIGURE = 80;
const OURS = "#c2410c";
const THEIRS = "#64748b";

/** A bar a contender, the fastest first, with a line from the least to the most of its rounds. Readable on any ground. */
export function chart(title: string, measured: readonly Measured[]): string {
  const bars = measured
    .flatMap(({ system, setting, rounds }) => {
      const spread = spreadOf(rounds, "perSecond");
      return spread === null ? [] : [{ system, label: `${system}: ${setting}`, ...spread }];
    })
    .sort((a, b) => b.median - a.median);
  const most = Math.max(1, ...bars.map(({ max }) => max));
  const x = (value: number) => LABELS + (value / most) * (WIDTH - LABELS - ROOM_FOR_FIGURE);
  const height = TOP + bars.length * ROW + 12;
  const rows = bars.flatMap(({ system, label, median, min, max }, index) => {
    const y = TOP + index * ROW;
    const middle = y + ROW / 2;
    return [
      `<text x="${LABELS - 8}" y="${middle + 4}" text-anchor="end">${escaped(label)}</text>`,
      `<rect x="${LABELS}" y="${y + 4}" width="${px(x(median) - LABELS)}" height="${ROW - 8}" fill="${system === "duework" ? OURS : THEIRS}"/>`,
      `<path d="M${px(x(min))} ${middle}H${px(x(max))}" stroke="#0f172a" stroke-width="1.5"/>`,
      `<text x="${px(x(max) + 6)}" y="${middle + 4}">${Math.round(median).toLocaleString("en-US")}</text>`,
    ];
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${escaped(title)}" font-family="system-ui, sans-serif" font-size="12" fill="#0f172a">`,
    `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>`,
    `<text x="12" y="24" font-size="14" font-weight="600">${escaped(title)}</text>`,
    ...rows,
    "</svg>",
    "",
  ].join("\n");
}

const px = (value: number) => value.toFixed(1);
const escaped = (text: string) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
