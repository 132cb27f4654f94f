import { useEffect, useRef, useState } from "react";
import { Link } from "react-router";
import { kernels } from "../../api/kernels";
import type { Problem } from "../../api/problem";
import { Card } from "../../design/card";
import { SearchField, Select, Switch } from "../../design/fields";
import { Empty } from "../../design/states";
import { ReplicaState } from "../../gen/retinue/manager/v1/endpoint_pb";
import { useStream } from "../../live/stream";
import { Trouble } from "../../parts/basics";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";

const TAIL = 200;
const KEPT = 3000;

interface Line {
  replica: string;
  text: string;
}

/** The output of all replicas in the order in which it comes, each line with its replica. */
export default function Logs({ endpoint, answer }: PartProps) {
  const [chosen, setChosen] = useState("");
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const [lines, setLines] = useState<readonly Line[]>([]);
  const [problem, setProblem] = useState<Problem>();
  const live = answer.replicas.filter(({ state }) => state !== ReplicaState.GONE);
  const read = live.filter(({ sessionId }) => chosen === "" || sessionId === chosen);
  const box = useRef<HTMLDivElement>(null);
  useStream(
    `logs ${read.map(({ sessionId }) => sessionId).join(" ")}`,
    async (signal, arrived) => {
      setLines([]);
      await Promise.all(
        read.map(async ({ sessionId, session }) => {
          const decoder = new TextDecoder();
          let rest = "";
          for await (const chunk of kernels.streamLogs(
            { session: sessionId, follow: true, tailLines: TAIL },
            { signal },
          )) {
            arrived();
            const parts = (rest + decoder.decode(chunk.data, { stream: true })).split("\n");
            rest = parts.pop() ?? "";
            const more = parts.map((part) => ({ replica: session, text: part.replace(/\r$/, "") }));
            if (more.length > 0) setLines((before) => [...before, ...more].slice(-KEPT));
          }
        }),
      );
    },
    setProblem,
  );
  const wanted = text.toLowerCase();
  const shown = wanted === "" ? lines : lines.filter((line) => line.text.toLowerCase().includes(wanted));
  // biome-ignore lint/correctness/useExhaustiveDependencies: what was added moves the end
  useEffect(() => {
    if (follow) box.current?.scrollTo({ top: box.current.scrollHeight });
  }, [shown, follow]);
  if (live.length === 0) return <Empty title={t("noReplicas")}>{t("noReplicasLogs")}</Empty>;
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-3">
        <Select
          label={t("replica")}
          labelHidden
          className="w-56"
          value={chosen}
          onChange={setChosen}
          options={[
            { value: "", label: t("allReplicas") },
            ...live.map(({ sessionId, session, revision }) => ({
              value: sessionId,
              label: session,
              note: t("revisionNamed", { number: revision }),
            })),
          ]}
        />
        <SearchField label={t("find")} value={text} onChange={setText} className="w-full sm:w-64" />
        <Switch label={t("follow")} checked={follow} onChange={setFollow} />
        {chosen !== "" && (
          <Link to={`/sessions/${chosen}/logs`} className="text-sm">
            {t("logsOfSession")}
          </Link>
        )}
      </div>
      <Trouble problem={problem} />
      <Card flush>
        <div
          ref={box}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
          tabIndex={0}
          role="log"
          aria-label={t("logsOf", { name: endpoint.spec?.name ?? "" })}
          className="h-[60vh] overflow-auto p-3 font-mono text-sm"
        >
          {shown.length === 0 && <p className="text-quiet">{t("nothingPrinted")}</p>}
          {shown.map((line, at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: lines have no other name
            <div key={at} className="whitespace-pre-wrap wrap-anywhere">
              {read.length > 1 && <span className="text-accent">{line.replica} </span>}
              {line.text}
            </div>
          ))}
        </div>
      </Card>
    </div>
  );
}
