import type { MessageInitShape } from "@bufbuild/protobuf";
import { useEffect, useRef, useState } from "react";
import { kernels } from "../../api/kernels";
import { type Problem, problemOf } from "../../api/problem";
import type { ExecuteCodeRequestSchema } from "../../gen/retinue/manager/v1/kernel_service_pb";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import type { CodeEvent, CodeInputSchema, CodeMediaForm } from "../../gen/retinue/types/v1/code_pb";
import { CodeStatus } from "../../gen/retinue/types/v1/code_pb";
import { pieces } from "../../logs/ansi";
import { Trouble } from "../../parts/basics";
import { Outbox } from "../../parts/outbox";
import { t } from "../../text/language";

type Step = MessageInitShape<typeof ExecuteCodeRequestSchema>["step"];
type Output = { kind: "text"; text: string; error: boolean } | { kind: "media"; forms: CodeMediaForm[] };

interface Cell {
  id: string;
  code: string;
  outputs: Output[];
  state: "new" | "queued" | "running" | "done" | "failed" | "asks";
  prompt: string;
}

const LANGUAGES = ["python", "bash"];

function newCell(code = ""): Cell {
  return { id: crypto.randomUUID(), code, outputs: [], state: "new", prompt: "" };
}

/** Cells that share one process of a language in main1: what one defines the next one has. */
export default function Code({ session }: { session: Session }) {
  const [language, setLanguage] = useState("python");
  const [cells, setCells] = useState<Cell[]>(() => [newCell()]);
  const [problem, setProblem] = useState<Problem>();
  const stream = useRef<Outbox<Step>>(undefined);
  const runs = useRef(new Map<string, string>());

  const change = (id: string, next: (cell: Cell) => Cell) =>
    setCells((all) => all.map((cell) => (cell.id === id ? next(cell) : cell)));

  // biome-ignore lint/correctness/useExhaustiveDependencies: another language has another stream
  useEffect(() => () => stream.current?.close(), [language, session.id]);

  const opened = (): Outbox<Step> => {
    if (stream.current !== undefined && !stream.current.closed) return stream.current;
    const outbox = new Outbox<Step>();
    stream.current = outbox;
    outbox.put({ case: "open", value: { session: session.id, language } });
    void (async () => {
      try {
        for await (const { output } of kernels.executeCode(outbox.steps())) {
          if (output?.step.case === "events") output.step.value.events.forEach(take);
        }
      } catch (error) {
        setProblem(problemOf(error));
      } finally {
        outbox.close();
      }
    })();
    return outbox;
  };

  const send = (step: MessageInitShape<typeof CodeInputSchema>["step"]) =>
    opened().put({ case: "input", value: { step } });

  const take = (event: CodeEvent) => {
    const id = runs.current.get(event.runId);
    if (id !== undefined) change(id, (cell) => after(cell, event));
  };

  const run = (cell: Cell) => {
    const runId = crypto.randomUUID();
    runs.current.set(runId, cell.id);
    setProblem(undefined);
    change(cell.id, (before) => ({ ...before, outputs: [], state: "queued" }));
    const code = { case: "code" as const, value: cell.code };
    send({ case: "run", value: { runId, program: code } });
    if (cell === cells.at(-1)) setCells((all) => [...all, newCell()]);
  };
  const runOf = (cell: Cell) => [...runs.current].findLast(([, id]) => id === cell.id)?.[0] ?? "";

  if (session.state !== SessionState.RUNNING) return <p className="note">{session.reason}</p>;
  return (
    <>
      <div className="toolbar">
        <label>
          {t("language")}{" "}
          <select value={language} onChange={(event) => setLanguage(event.target.value)}>
            {LANGUAGES.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <button type="button" onClick={() => setCells((all) => [...all, newCell()])}>
          {t("newCell")}
        </button>
      </div>
      <Trouble problem={problem} />
      {cells.map((cell, index) => (
        <section key={cell.id} className={`cell cell-${cell.state}`} aria-label={`${t("code")} ${index + 1}`}>
          <textarea
            aria-label={`${t("code")} ${index + 1}`}
            rows={Math.max(2, cell.code.split("\n").length)}
            value={cell.code}
            spellCheck={false}
            onChange={(event) => change(cell.id, (before) => ({ ...before, code: event.target.value }))}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.shiftKey || event.ctrlKey)) {
                event.preventDefault();
                run(cell);
              }
            }}
          />
          <div className="actions">
            <button type="button" onClick={() => run(cell)}>
              {t("run")} <kbd>⇧⏎</kbd>
            </button>
            <button
              type="button"
              disabled={cell.state !== "running" && cell.state !== "queued" && cell.state !== "asks"}
              onClick={() => send({ case: "interrupt", value: { runId: runOf(cell) } })}
            >
              {t("interrupt")}
            </button>
            <span role="status">{cell.state === "new" ? "" : cell.state}</span>
          </div>
          {cell.state === "asks" && (
            <form
              onSubmit={(event) => {
                event.preventDefault();
                const value = String(new FormData(event.currentTarget).get("value") ?? "");
                send({ case: "answer", value: { runId: runOf(cell), value } });
                change(cell.id, (before) => ({ ...before, state: "running" }));
              }}
            >
              <label>
                {cell.prompt || t("input")} <input name="value" autoComplete="off" />
              </label>
            </form>
          )}
          <div className="outputs">
            {cell.outputs.map((output, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: outputs are only added
              <Shown key={at} output={output} />
            ))}
          </div>
        </section>
      ))}
    </>
  );
}

function after(cell: Cell, { event }: CodeEvent): Cell {
  switch (event.case) {
    case "queued":
      return { ...cell, state: "queued" };
    case "started":
      return { ...cell, state: "running" };
    case "stdout":
    case "stderr":
      return { ...cell, outputs: withText(cell.outputs, event.value, event.case === "stderr") };
    case "log":
      return { ...cell, outputs: withText(cell.outputs, `${event.value.message}\n`, true) };
    case "media":
      return { ...cell, outputs: [...cell.outputs, { kind: "media", forms: event.value.forms }] };
    case "inputRequest":
      return { ...cell, state: "asks", prompt: event.value.prompt };
    case "finished": {
      const { status, traceback, errorName, errorValue } = event.value;
      if (status === CodeStatus.OK) return { ...cell, state: "done" };
      const text = traceback.length > 0 ? traceback.join("\n") : [errorName, errorValue].filter(Boolean).join(": ");
      return { ...cell, state: "failed", outputs: withText(cell.outputs, `${text || CodeStatus[status]}\n`, true) };
    }
    default:
      return cell;
  }
}

function withText(outputs: Output[], text: string, error: boolean): Output[] {
  const last = outputs.at(-1);
  if (last?.kind === "text" && last.error === error) {
    return [...outputs.slice(0, -1), { ...last, text: last.text + text }];
  }
  return [...outputs, { kind: "text", text, error }];
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** One output. What is more than text or a picture is shown in a frame that reaches nothing. */
function Shown({ output }: { output: Output }) {
  if (output.kind === "text") {
    return (
      <pre className={output.error ? "error" : ""}>
        {pieces(output.text.replaceAll("\n", "\u2028")).map((piece, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: pieces of a text have no other name
          <span key={index} className={piece.look}>
            {piece.text.replaceAll("\u2028", "\n")}
          </span>
        ))}
      </pre>
    );
  }
  const picture = output.forms.find((form) => PICTURES.has(form.mimeType));
  if (picture !== undefined) {
    return <img alt={plain(output.forms)} src={`data:${picture.mimeType};base64,${encoded(picture.data)}`} />;
  }
  const html = output.forms.find((form) => form.mimeType === "text/html" || form.mimeType === "image/svg+xml");
  if (html !== undefined) return <Frame html={html.text || new TextDecoder().decode(html.data)} />;
  return <pre>{plain(output.forms)}</pre>;
}

function plain(forms: CodeMediaForm[]): string {
  const form = forms.find((each) => each.mimeType === "text/plain") ?? forms[0];
  return form === undefined ? "" : form.text || new TextDecoder().decode(form.data);
}

function encoded(data: Uint8Array): string {
  return (
    (data as Uint8Array & { toBase64?: () => string }).toBase64?.() ??
    btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""))
  );
}

function Frame({ html }: { html: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(120);
  useEffect(() => {
    const heard = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow) return;
      const said = event.data as { ready?: boolean; height?: number };
      if (said.ready) frame.current?.contentWindow?.postMessage({ html }, "*");
      if (typeof said.height === "number") setHeight(Math.min(Math.max(said.height, 20), 800));
    };
    window.addEventListener("message", heard);
    return () => window.removeEventListener("message", heard);
  }, [html]);
  return (
    <iframe ref={frame} className="output" title={t("code")} sandbox="allow-scripts" src="/output" style={{ height }} />
  );
}
