import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { kernels } from "../../api/kernels";
import type { Problem } from "../../api/problem";
import type { Session } from "../../gen/retinue/manager/v1/session_pb";
import { useStream } from "../../live/stream";
import { pieces } from "../../logs/ansi";
import { LogLines } from "../../logs/lines";
import { Trouble } from "../../parts/basics";
import { save } from "../../parts/save";
import { t } from "../../text/language";

const LINE = 20;

export default function Logs({ session }: { session: Session }) {
  const hosts = session.kernels.map((kernel) => kernel.hostname);
  const [host, setHost] = useState("main1");
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const [problem, setProblem] = useState<Problem>();
  const [turn, setTurn] = useState(0);
  const log = useRef({ host: "", lines: new LogLines() });
  if (log.current.host !== host) log.current = { host, lines: new LogLines() };
  const current = log.current.lines;
  useStream(
    `logs ${session.id} ${host}`,
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
    return wanted === "" ? current.all() : current.all().filter((line) => line.toLowerCase().includes(wanted));
  }, [current, text, turn]);
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
  return (
    <>
      <div className="toolbar">
        <select aria-label={t("kernel")} value={host} onChange={(event) => setHost(event.target.value)}>
          {hosts.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <input
          type="search"
          aria-label={t("find")}
          placeholder={t("find")}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        {text && <span role="status">{t("matches", { count: lines.length })}</span>}
        <label>
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.target.checked)} /> {t("follow")}
        </label>
        <button
          type="button"
          onClick={() => save(`${session.spec?.name}-${host}.log`, [`${current.all().join("\n")}\n`], "text/plain")}
        >
          {t("download")}
        </button>
      </div>
      <Trouble problem={problem} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
      <section className="log" ref={box} aria-label={t("logs")} tabIndex={0}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => (
            <div key={item.key} className="line" style={{ transform: `translateY(${item.start}px)` }}>
              {pieces(lines[item.index] ?? "").map((piece, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: pieces of a line have no other name
                <span key={index} className={piece.look}>
                  {piece.text}
                </span>
              ))}
            </div>
          ))}
        </div>
      </section>
    </>
  );
}
