import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDownToLine, Download, ScrollText } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { kernels } from "../../api/kernels";
import type { Problem } from "../../api/problem";
import { Button, IconButton } from "../../design/button";
import { classes } from "../../design/classes";
import { SearchField, Select, Switch } from "../../design/fields";
import { Empty } from "../../design/states";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { useStream } from "../../live/stream";
import { pieces } from "../../logs/ansi";
import { classesOf } from "../../logs/colours";
import { atLeast, type Level, levelOf, matchesIn } from "../../logs/levels";
import { LogLines } from "../../logs/lines";
import { Trouble } from "../../parts/basics";
import { save } from "../../parts/save";
import { t } from "../../text/language";

const LINE = 20;
type Since = "all" | "300" | "3600";

const LOOKS: Record<Level, string> = {
  error: "border-bad text-bad",
  warning: "border-warn text-warn",
  info: "border-transparent",
  debug: "border-transparent text-quiet",
};

export default function Logs({ session }: { session: Session }) {
  const hosts = session.kernels.map((kernel) => kernel.hostname);
  const [host, setHost] = useState("main1");
  const [since, setSince] = useState<Since>("all");
  const [level, setLevel] = useState<Level | "all">("all");
  const [text, setText] = useState("");
  const [wrap, setWrap] = useState(false);
  const [follow, setFollow] = useState(true);
  const [problem, setProblem] = useState<Problem>();
  const [turn, setTurn] = useState(0);
  const key = `logs ${session.id} ${host} ${since}`;
  const log = useRef({ key: "", lines: new LogLines() });
  if (log.current.key !== key) log.current = { key, lines: new LogLines() };
  const current = log.current.lines;
  useStream(
    key,
    async (signal, arrived) => {
      const decoders = new Map<number, TextDecoder>();
      let drawn = 0;
      // After a break it goes on where it stopped.
      const request = {
        session: session.id,
        hostname: host,
        follow: true,
        offset: current.offset,
        attempt: current.attempt,
        ...(since !== "all" &&
          current.offset === 0n && { sinceTime: timestampFromMs(Date.now() - 1000 * Number(since)) }),
      };
      for await (const chunk of kernels.streamLogs(request, { signal })) {
        arrived();
        const decoder = decoders.get(chunk.attempt) ?? new TextDecoder();
        decoders.set(chunk.attempt, decoder);
        current.add(decoder.decode(chunk.data, { stream: true }), chunk.attempt, chunk.endOffset);
        cancelAnimationFrame(drawn);
        drawn = requestAnimationFrame(() => setTurn((count) => count + 1));
      }
      setTurn((count) => count + 1);
    },
    setProblem,
  );
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` says that lines were added
  const lines = useMemo(() => {
    const wanted = text.toLowerCase();
    const all = level === "all" ? current.all() : atLeast(current.all(), level);
    return wanted === "" ? all : all.filter((line) => line.toLowerCase().includes(wanted));
  }, [current, text, level, turn]);
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE,
    overscan: 20,
  });
  useEffect(() => {
    if (follow && lines.length > 0) virtual.scrollToIndex(lines.length - 1);
  }, [follow, lines, virtual]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: heights of lines change with it
  useEffect(() => virtual.measure(), [wrap, virtual]);
  // Who scrolls up reads; who is at the end again follows.
  const scrolled = () => {
    const shown = box.current;
    if (shown === null) return;
    const rest = shown.scrollHeight - shown.scrollTop - shown.clientHeight;
    if (rest > 4 * LINE && virtual.scrollDirection === "backward") setFollow(false);
  };
  return (
    <>
      <div className="flex flex-wrap items-end gap-2 pb-3">
        <Select
          className="w-32"
          label={t("kernel")}
          labelHidden
          options={hosts.map((each) => ({ value: each, label: each }))}
          value={host}
          onChange={setHost}
        />
        <SearchField
          className="w-full sm:w-72"
          label={t("find")}
          placeholder={t("find")}
          value={text}
          onChange={setText}
        />
        <Select
          className="w-40"
          label={t("level")}
          labelHidden
          options={[
            { value: "all", label: t("allLevels") },
            { value: "info", label: t("levelInfo") },
            { value: "warning", label: t("levelWarning") },
            { value: "error", label: t("levelError") },
          ]}
          value={level}
          onChange={setLevel}
        />
        <Select
          className="w-48"
          label={t("time")}
          labelHidden
          options={[
            { value: "all", label: t("fromBeginning") },
            { value: "300", label: t("lastMinutes", { count: 5 }) },
            { value: "3600", label: t("lastHour") },
          ]}
          value={since}
          onChange={setSince}
        />
        <span className="inline-flex h-8.5 items-center gap-4">
          <Switch label={t("wrapLines")} checked={wrap} onChange={setWrap} />
          <Switch label={t("follow")} checked={follow} onChange={setFollow} />
        </span>
        <span className="ml-auto inline-flex items-center gap-3">
          <span role="status" className="text-sm text-quiet tabular-nums">
            {text !== "" || level !== "all"
              ? t("matches", { count: lines.length })
              : t("linesInAll", { count: lines.length })}
          </span>
          <Button
            icon={<Download size={15} aria-hidden="true" />}
            onClick={() => save(`${session.spec?.name}-${host}.log`, [`${current.all().join("\n")}\n`], "text/plain")}
          >
            {t("download")}
          </Button>
        </span>
      </div>
      <Trouble problem={problem} />
      <div className="relative flex min-h-80 grow flex-col">
        <section
          className="log min-h-0 grow overflow-auto rounded-lg border border-line bg-card py-1 font-mono text-sm"
          ref={box}
          aria-label={t("logs")}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
          tabIndex={0}
          onScroll={scrolled}
        >
          {lines.length === 0 && (
            <Empty
              icon={<ScrollText size={30} aria-hidden="true" />}
              title={t(text !== "" || level !== "all" ? "nothingMatches" : "noOutput")}
            />
          )}
          <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
            {virtual.getVirtualItems().map((item) => (
              <div
                key={item.key}
                ref={wrap ? virtual.measureElement : undefined}
                data-index={item.index}
                className={classes(
                  "line absolute top-0 left-0 min-h-5 border-l-2 px-3 leading-5",
                  wrap ? "w-full whitespace-pre-wrap wrap-anywhere" : "min-w-full whitespace-pre",
                  LOOKS[levelOf(lines[item.index] ?? "") ?? "info"],
                )}
                style={{ transform: `translateY(${item.start}px)` }}
              >
                <Line line={lines[item.index] ?? ""} search={text} />
              </div>
            ))}
          </div>
        </section>
        {!follow && lines.length > 0 && (
          <span className="absolute right-4 bottom-4">
            <IconButton label={t("toEnd")} look="plain" onClick={() => setFollow(true)}>
              <ArrowDownToLine size={16} aria-hidden="true" />
            </IconButton>
          </span>
        )}
      </div>
    </>
  );
}

function Line({ line, search }: { line: string; search: string }) {
  return pieces(line).map((piece, index) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: pieces of a line have no other name
    <span key={index} className={classesOf(piece.look)}>
      {matchesIn(piece.text, search).map((part, at) =>
        at % 2 === 0 ? (
          part
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: as above
          <mark key={at} className="rounded-xs bg-warn-soft text-warn">
            {part}
          </mark>
        ),
      )}
    </span>
  ));
}
