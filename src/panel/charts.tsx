/** Charts as plain SVG: no script draws them, and a table beside them says the same. */

const WIDTH = 600;
const HEIGHT = 96;
/** A bar is no wider than one of so many: a few ticks are not an hour. */
const BARS_LEAST = 30;

export interface Series {
  name: string;
  /** Its class in the style sheet: `one`, `two`, `three`. */
  tone: "one" | "two" | "three";
  values: readonly number[];
}

/** Bars, stacked, the oldest first and the newest at the right edge. `what` says in one sentence what is seen. */
export function Bars({ what, series, times }: { what: string; series: readonly Series[]; times: readonly string[] }) {
  const sums = times.map((_, index) => series.reduce((sum, { values }) => sum + (values[index] ?? 0), 0));
  const highest = Math.max(0, ...sums);
  const top = Math.max(1, highest);
  const step = WIDTH / Math.max(BARS_LEAST, times.length);
  const left = WIDTH - step * times.length;
  return (
    <figure class="chart">
      <figcaption>
        {what}
        <span class="keys">
          {(series.length > 1 ? series : []).map(({ name, tone }) => (
            <span class="key">
              <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">
                <rect class={tone} width="10" height="10" />
              </svg>{" "}
              {name}
            </span>
          ))}
        </span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={what}>
        {times.map((time, index) => {
          let below = 0;
          return (
            <g>
              <title>{`${time}: ${series.map(({ name, values }) => `${values[index] ?? 0} ${name}`).join(", ")}`}</title>
              {series.map(({ tone, values }) => {
                const height = ((values[index] ?? 0) / top) * HEIGHT;
                below += height;
                return (
                  <rect
                    class={tone}
                    x={(left + index * step).toFixed(2)}
                    y={(HEIGHT - below).toFixed(2)}
                    width={Math.max(0.5, step - 1).toFixed(2)}
                    height={height.toFixed(2)}
                  />
                );
              })}
            </g>
          );
        })}
      </svg>
      <p class="scale">{highest === 0 ? "nothing" : `highest: ${highest.toLocaleString("en")}`}</p>
    </figure>
  );
}
