import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { bytes } from "../text/format";

export interface Series {
  name: string;
  /** Time in seconds since 1970, and the value then. */
  points: readonly (readonly [number, number])[];
}

const COLOURS = ["#2f6fdb", "#c2571a", "#2b8a3e", "#a5309b", "#8a6d00", "#0b7285", "#b02a37", "#5f3dc4"];
const HEIGHT = 140;

/** Lines over time, drawn on a canvas; the last values are words below, also for who does not see it. */
export function Chart({ title, unit, series }: { title: string; unit: string; series: readonly Series[] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const names = series.map(({ name }) => name).join("\n");
  const write = (value: number) => (unit.startsWith("B") ? bytes(value) + unit.slice(1) : value.toFixed(2) + unit);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the axes change with the names of the lines only
  useEffect(() => {
    if (box.current === null) return;
    const colour = getComputedStyle(box.current).color;
    const axis = { stroke: colour, grid: { stroke: "#8884", width: 1 } };
    const made = new uPlot(
      {
        width: box.current.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        axes: [axis, { ...axis, size: 60, values: (_plot, values) => values.map(write) }],
        series: [{}, ...series.map(({ name }, index) => ({ label: name, stroke: COLOURS[index % COLOURS.length] }))],
      },
      [[], ...series.map(() => [])],
      box.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(([entry]) => {
      if (entry) made.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [names]);
  useEffect(() => {
    const times = [...new Set(series.flatMap(({ points }) => points.map(([time]) => time)))].sort((a, b) => a - b);
    const lines = series.map(({ points }) => {
      const values = new Map(points);
      return times.map((time) => values.get(time) ?? null);
    });
    plot.current?.setData([times, ...lines]);
  }, [series]);
  return (
    <figure className="chart">
      <figcaption>{title}</figcaption>
      <div ref={box} aria-hidden="true" />
      <p>
        {series.map(({ name, points }, index) => (
          <span key={name}>
            <span aria-hidden="true" style={{ color: COLOURS[index % COLOURS.length] }}>
              ■
            </span>{" "}
            {name} {write(points.at(-1)?.[1] ?? 0)}
          </span>
        ))}
      </p>
    </figure>
  );
}
