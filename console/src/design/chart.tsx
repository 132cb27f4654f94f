import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { axisTime, moment } from "../text/format";
import { t } from "../text/language";

export interface Series {
  name: string;
  /** Time in seconds since 1970, and the value then; null breaks the line. */
  points: readonly (readonly [number, number | null])[];
}

/** At least this many seconds are shown: a single point is no year. */
const SHORTEST = 300;

/** Times of the axis from the first to the last point, or the range that is asked for. */
export function timeRange(series: readonly Series[], seconds: number | undefined, now: number): [number, number] {
  if (seconds !== undefined) return [now - seconds, now];
  const times = series.flatMap(({ points }) => points.map(([time]) => time));
  const last = times.length > 0 ? times.reduce((one, other) => Math.max(one, other)) : now;
  const first = times.length > 0 ? times.reduce((one, other) => Math.min(one, other)) : now;
  return [Math.min(first, last - SHORTEST), last];
}

/** Values of the axis: from 0 to a little more than the largest, or to the bound if that is near. */
export function valueRange(series: readonly Series[], bound: number | undefined): [number, number] {
  const largest = series.reduce(
    (most, { points }) => points.reduce((one, [, value]) => Math.max(one, value ?? 0), most),
    0,
  );
  if (bound !== undefined && largest > bound / 4) return [0, Math.max(bound, largest) * 1.05];
  return [0, largest > 0 ? largest * 1.15 : 1];
}

/**
 * Lines over time on a canvas. What the pointer is at stands in the legend, else the last values; these are also the
 * words for who does not see it.
 */
export function Chart({
  title,
  write,
  series,
  seconds,
  bound,
  height = 140,
  stepped = false,
}: {
  title: string;
  /** Writes a value with its unit. */
  write: (value: number) => string;
  series: readonly Series[];
  /** How long a time is shown, up to now; else what the points cover. */
  seconds?: number;
  /** What the values cannot or may not be above: drawn as a dashed line when they are near. */
  bound?: number;
  height?: number;
  /** Whether a value holds until the next: a count of replicas does, a measured load does not. */
  stepped?: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const latest = useRef({ write, series, seconds, bound });
  latest.current = { write, series, seconds, bound };
  const [at, setAt] = useState<number>();
  const names = series.map(({ name }) => name).join("\n");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the axes change with the names of the lines only
  useEffect(() => {
    if (box.current === null) return;
    const style = getComputedStyle(box.current);
    const axis = {
      stroke: style.color,
      font: `11px ${style.fontFamily}`,
      grid: { stroke: "#8883", width: 1 },
      ticks: { show: false },
    };
    const made = new uPlot(
      {
        width: box.current.clientWidth || 300,
        height,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: {
          x: { range: () => timeRange(latest.current.series, latest.current.seconds, Date.now() / 1000) },
          y: { range: () => valueRange(latest.current.series, latest.current.bound) },
        },
        axes: [
          {
            ...axis,
            size: 28,
            space: 80,
            values: (_plot, values, _axis, _space, step) =>
              values.map((value) => axisTime(new Date(value * 1000), step)),
          },
          {
            ...axis,
            size: 58,
            space: 28,
            values: (_plot, values) => values.map((value) => latest.current.write(value)),
          },
        ],
        series: [
          {},
          ...series.map(({ name }, index) => ({
            label: name,
            stroke: colour(style, index),
            width: 1.75,
            points: {
              show: (points: uPlot, at: number) =>
                Array.from(points.data[at] ?? []).filter((value) => value != null).length < 2,
            },
            ...(stepped && { paths: uPlot.paths.stepped?.({ align: 1 }) }),
          })),
        ],
        hooks: {
          setCursor: [(shown) => setAt(shown.cursor.idx ?? undefined)],
          draw: [(shown) => drawBound(shown, latest.current.bound, style.color)],
        },
      },
      [[], ...series.map(() => [])],
      box.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(([entry]) => {
      if (entry) made.setSize({ width: entry.contentRect.width, height });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [names, height, stepped]);
  useEffect(() => {
    plot.current?.setData(columns(series));
  }, [series]);
  const time = at === undefined ? undefined : plot.current?.data[0][at];
  return (
    <figure className="chart flex min-w-0 flex-col gap-1">
      <figcaption className="flex items-baseline justify-between gap-2 text-sm font-medium">
        {title}
        <span className="text-xs font-normal text-quiet tabular-nums">
          {time !== undefined && moment(timestampFromMs(Math.round(time * 1000)))}
        </span>
      </figcaption>
      <div ref={box} aria-hidden="true" className="min-w-0 text-quiet" />
      <p className="flex flex-wrap gap-x-3 gap-y-0.5 text-xs">
        {series.every(({ points }) => points.length === 0) && <span className="text-quiet">{t("noData")}</span>}
        {series.map(({ name, points }, index) => {
          // Where the pointer is, a line that is measured at other times has its last value before.
          const until = time ?? Number.POSITIVE_INFINITY;
          const value = points.findLast(([when]) => when <= until)?.[1];
          return (
            typeof value === "number" && (
              <span key={name} className="tabular-nums">
                <span aria-hidden="true" style={{ color: `var(--color-series-${(index % 8) + 1})` }}>
                  ■
                </span>{" "}
                {name} {write(value)}
              </span>
            )
          );
        })}
      </p>
    </figure>
  );
}

/** A canvas knows no variables, nor `light-dark`: an element is asked what the colour is. */
function colour(style: CSSStyleDeclaration, index: number): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--color-series-${(index % 8) + 1})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found || style.color;
}

function drawBound(plot: uPlot, bound: number | undefined, stroke: string): void {
  const top = plot.scales.y?.max;
  if (bound === undefined || top === null || top === undefined || bound > top) return;
  const y = plot.valToPos(bound, "y", true);
  plot.ctx.save();
  plot.ctx.strokeStyle = stroke;
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.beginPath();
  plot.ctx.moveTo(plot.bbox.left, y);
  plot.ctx.lineTo(plot.bbox.left + plot.bbox.width, y);
  plot.ctx.stroke();
  plot.ctx.restore();
}

/** All times, and each line's values at them. Lines measured at different times have no value at each other's: no gap. */
export function columns(series: readonly Series[]): uPlot.AlignedData {
  const times = [...new Set(series.flatMap(({ points }) => points.map(([time]) => time)))].sort((a, b) => a - b);
  const lines = series.map(({ points }) => {
    const values = new Map(points);
    return times.map((time) => values.get(time));
  });
  return [times, ...lines];
}
