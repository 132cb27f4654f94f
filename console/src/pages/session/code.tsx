import type { MessageInitShape } from "@bufbuild/protobuf";
import { ArrowDown, ArrowUp, Download, FileInput, Play, PlayCircle, Plus, Square, Text, Trash2 } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { kernels } from "../../api/kernels";
import { type Problem, problemOf } from "../../api/problem";
import { Badge, type Tone } from "../../design/badge";
import { Button, IconButton } from "../../design/button";
import { classes } from "../../design/classes";
import { Select, TextArea, TextField } from "../../design/fields";
import { FileButton } from "../../design/files";
import { notify } from "../../design/notify";
import { Empty } from "../../design/states";
import type { ExecuteCodeRequestSchema } from "../../gen/retinue/manager/v1/kernel_service_pb";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import type { CodeEvent, CodeInputSchema } from "../../gen/retinue/types/v1/code_pb";
import { after, base64, type Cell, isBusy, newCell } from "../../live/cells";
import { Trouble } from "../../parts/basics";
import { Outbox } from "../../parts/outbox";
import { save } from "../../parts/save";
import { notebookFile, readNotebook } from "../../spec/notebook";
import { type Key, t } from "../../text/language";
import { Shown } from "./output";

type Step = MessageInitShape<typeof ExecuteCodeRequestSchema>["step"];

const LANGUAGES = ["python", "bash"];
const STATES: Partial<Record<Cell["state"], { key: Key; tone: Tone; edge: string }>> = {
  queued: { key: "cellQueued", tone: "neutral", edge: "border-l-busy" },
  running: { key: "cellRunning", tone: "busy", edge: "border-l-busy" },
  asks: { key: "cellAsks", tone: "warn", edge: "border-l-warn" },
  done: { key: "cellDone", tone: "good", edge: "border-l-good" },
  failed: { key: "cellFailed", tone: "bad", edge: "border-l-bad" },
};

interface Notebook {
  language: string;
  cells: Cell[];
}

/** What is written stays while the console is open; it is in no storage of the browser, as it may hold secrets. */
const kept = new Map<string, Notebook>();

/** Cells that share one process of a language in main1: what one defines the next one has. */
export default function Code({ session }: { session: Session }) {
  const before = kept.get(session.id);
  const [language, setLanguage] = useState(before?.language ?? "python");
  const [cells, setCells] = useState<Cell[]>(() => before?.cells.map(leftAlone) ?? [newCell()]);
  const [problem, setProblem] = useState<Problem>();
  const [unreadable, setUnreadable] = useState("");
  const stream = useRef<Outbox<Step>>(undefined);
  const runs = useRef(new Map<string, string>());
  useEffect(() => {
    kept.set(session.id, { language, cells });
  }, [session.id, language, cells]);

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
    if (cell.kind === "text") return;
    const runId = crypto.randomUUID();
    runs.current.set(runId, cell.id);
    setProblem(undefined);
    change(cell.id, (now) => ({ ...now, outputs: [], state: "queued" }));
    send({ case: "run", value: { runId, program: { case: "code", value: cell.code } } });
    if (cell === cells.at(-1)) setCells((all) => [...all, newCell()]);
  };
  const runOf = (cell: Cell) => [...runs.current].findLast(([, id]) => id === cell.id)?.[0] ?? "";
  const shift = (at: number, by: number) =>
    setCells((all) => {
      const next = all.toSpliced(at, 1);
      const moved = all[at];
      return moved === undefined ? all : next.toSpliced(at + by, 0, moved);
    });
  const drop = (at: number) => {
    const gone = cells[at];
    if (gone === undefined) return;
    setCells((all) => (all.length === 1 ? [newCell()] : all.filter((cell) => cell !== gone)));
    if (gone.code !== "") {
      notify(t("cellDeleted"), { undo: () => setCells((all) => all.toSpliced(Math.min(at, all.length), 0, gone)) });
    }
  };
  const keep = () => {
    const file = notebookFile(
      cells.map(({ kind, code, outputs }) => ({
        kind,
        source: code,
        outputs: outputs.map((output) =>
          output.kind === "text"
            ? output
            : {
                kind: "media",
                forms: output.forms.map((form) => ({
                  mimeType: form.mimeType,
                  text: form.text || (isText(form.mimeType) ? new TextDecoder().decode(form.data) : ""),
                  base64: form.text || isText(form.mimeType) ? "" : base64(form.data),
                })),
              },
        ),
      })),
      language,
    );
    save(`${session.spec?.name}.ipynb`, [file], "application/x-ipynb+json");
  };
  const open = async ([file]: File[]) => {
    if (file === undefined) return;
    const notebook = readNotebook(await file.text());
    setUnreadable(notebook === undefined ? t("noNotebook", { name: file.name }) : "");
    if (notebook === undefined) return;
    const former = cells;
    setCells(notebook.cells.length > 0 ? notebook.cells.map((cell) => newCell(cell.source, cell.kind)) : [newCell()]);
    setLanguage(notebook.language);
    if (former.some(({ code }) => code !== "")) {
      notify(t("notebookOpened", { name: file.name }), { undo: () => setCells(former) });
    }
  };

  if (session.state !== SessionState.RUNNING) {
    return (
      <Empty icon={<Play size={30} aria-hidden="true" />} title={t("codeNeedsRunning")}>
        {session.message}
      </Empty>
    );
  }
  const languages = LANGUAGES.includes(language) ? LANGUAGES : [...LANGUAGES, language];
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <Select
          className="w-32"
          label={t("language")}
          labelHidden
          options={languages.map((each) => ({ value: each, label: each }))}
          value={language}
          onChange={setLanguage}
        />
        <Button
          icon={<PlayCircle size={15} aria-hidden="true" />}
          onClick={() => cells.forEach(run)}
          disabled={cells.every(({ code }) => code === "")}
        >
          {t("runAll")}
        </Button>
        <span className="ml-auto inline-flex flex-wrap gap-2">
          <FileButton
            label={t("openNotebook")}
            icon={<FileInput size={15} aria-hidden="true" />}
            accept=".ipynb"
            onFiles={(files) => void open(files)}
          />
          <Button icon={<Download size={15} aria-hidden="true" />} onClick={keep}>
            {t("saveNotebook")}
          </Button>
        </span>
      </div>
      <Trouble problem={problem} />
      {unreadable !== "" && (
        <p role="alert" className="rounded-md bg-bad-soft px-3 py-2 text-bad">
          {unreadable}
        </p>
      )}
      {cells.map((cell, index) => {
        const name = `${t(cell.kind === "code" ? "code" : "textCell")} ${index + 1}`;
        const state = STATES[cell.state];
        return (
          <section
            key={cell.id}
            className={classes(
              "cell min-w-0 overflow-hidden rounded-lg border border-l-4 border-line bg-card",
              state?.edge,
            )}
            aria-label={name}
            onKeyDown={(event) => {
              if (
                event.key === "Enter" &&
                (event.shiftKey || event.ctrlKey) &&
                event.target instanceof HTMLTextAreaElement
              ) {
                event.preventDefault();
                run(cell);
              }
            }}
          >
            <div className="flex items-center gap-1 border-b border-line px-2 py-1">
              {cell.kind === "code" ? (
                <>
                  <Button
                    look="quiet"
                    size="small"
                    icon={<Play size={14} aria-hidden="true" className="text-good" />}
                    onClick={() => run(cell)}
                  >
                    {t("run")} <kbd className="text-quiet">⇧⏎</kbd>
                  </Button>
                  <Button
                    look="quiet"
                    size="small"
                    icon={<Square size={13} aria-hidden="true" />}
                    disabled={!isBusy(cell)}
                    onClick={() => send({ case: "interrupt", value: { runId: runOf(cell) } })}
                  >
                    {t("interrupt")}
                  </Button>
                </>
              ) : (
                <span className="px-2 text-sm text-quiet">{t("textCell")}</span>
              )}
              <span role="status">{state !== undefined && <Badge tone={state.tone}>{t(state.key)}</Badge>}</span>
              <span className="ml-auto inline-flex">
                <IconButton label={t("moveUp")} size="small" disabled={index === 0} onClick={() => shift(index, -1)}>
                  <ArrowUp size={14} aria-hidden="true" />
                </IconButton>
                <IconButton
                  label={t("moveDown")}
                  size="small"
                  disabled={index === cells.length - 1}
                  onClick={() => shift(index, 1)}
                >
                  <ArrowDown size={14} aria-hidden="true" />
                </IconButton>
                <IconButton label={t("deleteCell")} size="small" onClick={() => drop(index)}>
                  <Trash2 size={14} aria-hidden="true" />
                </IconButton>
              </span>
            </div>
            <div className="p-2">
              <TextArea
                label={name}
                labelHidden
                mono={cell.kind === "code"}
                rows={Math.max(2, cell.code.split("\n").length)}
                value={cell.code}
                onChange={(code) => change(cell.id, (now) => ({ ...now, code }))}
              />
            </div>
            {cell.state === "asks" && (
              <form
                className="px-2 pb-2"
                onSubmit={(event) => {
                  event.preventDefault();
                  const value = String(new FormData(event.currentTarget).get("value") ?? "");
                  send({ case: "answer", value: { runId: runOf(cell), value } });
                  change(cell.id, (now) => ({ ...now, state: "running" }));
                }}
              >
                <Answer label={cell.prompt || t("input")} />
              </form>
            )}
            {cell.outputs.length > 0 && (
              <div className="outputs flex max-h-[32rem] flex-col overflow-auto border-t border-line bg-sunken py-1">
                {cell.outputs.map((output, at) => (
                  // biome-ignore lint/suspicious/noArrayIndexKey: outputs are only added
                  <Shown key={at} output={output} />
                ))}
              </div>
            )}
          </section>
        );
      })}
      <span className="inline-flex gap-2">
        <Button icon={<Plus size={15} aria-hidden="true" />} onClick={() => setCells((all) => [...all, newCell()])}>
          {t("newCell")}
        </Button>
        <Button
          look="quiet"
          icon={<Text size={15} aria-hidden="true" />}
          onClick={() => setCells((all) => [...all, newCell("", "text")])}
        >
          {t("newTextCell")}
        </Button>
      </span>
    </div>
  );
}

/** What a program has asked for. */
function Answer({ label }: { label: string }) {
  const [value, setValue] = useState("");
  return <TextField name="value" label={label} value={value} onChange={setValue} />;
}

/** A cell whose run this page no longer hears of. */
function leftAlone(cell: Cell): Cell {
  return isBusy(cell) ? { ...cell, state: "new" } : cell;
}

function isText(mimeType: string): boolean {
  return mimeType.startsWith("text/") || mimeType === "image/svg+xml" || mimeType === "application/json";
}
