import type { MessageInitShape } from "@bufbuild/protobuf";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { kernels } from "../../api/kernels";
import { type Problem, problemOf } from "../../api/problem";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { type FileEntry, FileType, type UploadInputSchema } from "../../gen/retinue/types/v1/file_pb";
import { Table, Trouble } from "../../parts/basics";
import { save } from "../../parts/save";
import { useLoaded } from "../../parts/store";
import { bytes, moment } from "../../text/format";
import { t } from "../../text/language";

const HOME = "";
const PIECE = 256 << 10;
/** Larger files are for `retinue cp`: a page holds a file in memory before it is saved. */
const LARGEST = 1 << 30;

/** The files of a kernel's work directory: a list of one folder at a time. */
export default function Files({ session }: { session: Session }) {
  const [parameters, setParameters] = useSearchParams();
  const path = parameters.get("path") ?? HOME;
  const kernel = parameters.get("kernel") ?? "main1";
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState("");
  const found = useLoaded(`files ${session.id} ${kernel} ${path}`, async (signal) => {
    if (session.state !== SessionState.RUNNING) return [];
    const entries: FileEntry[] = [];
    for await (const page of kernels.listFiles({ session: session.id, hostname: kernel, path }, { signal })) {
      entries.push(...page.entries);
    }
    return entries.sort(
      (one, other) =>
        Number(other.type === FileType.DIRECTORY) - Number(one.type === FileType.DIRECTORY) ||
        one.path.localeCompare(other.path),
    );
  });
  const go = (to: string) => setParameters({ kernel, path: to });
  const attempt = async (what: string, act: () => Promise<void>) => {
    setBusy(what);
    try {
      await act();
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy("");
    found.reload();
  };
  if (session.state !== SessionState.RUNNING) return <p className="note">{session.reason}</p>;
  return (
    <>
      <div className="toolbar">
        <select
          aria-label={t("kernel")}
          value={kernel}
          onChange={(event) => setParameters({ kernel: event.target.value, path })}
        >
          {session.kernels.map(({ hostname }) => (
            <option key={hostname}>{hostname}</option>
          ))}
        </select>
        <nav aria-label={t("folder")}>
          <button type="button" className="plain" onClick={() => go(HOME)}>
            ~
          </button>
          {path
            .split("/")
            .filter((part) => part !== "")
            .map((part, index, parts) => (
              <span key={parts.slice(0, index + 1).join("/")}>
                {" / "}
                <button type="button" className="plain" onClick={() => go(parts.slice(0, index + 1).join("/"))}>
                  {part}
                </button>
              </span>
            ))}
        </nav>
        <label className="button">
          {t("upload")}
          <input
            type="file"
            multiple
            className="hidden"
            onChange={(event) => {
              const files = [...(event.target.files ?? [])];
              event.target.value = "";
              void attempt(t("upload"), () => upload(session.id, kernel, path, files));
            }}
          />
        </label>
        {busy && <span role="status">{busy}…</span>}
      </div>
      <Trouble problem={problem ?? found.problem} />
      <Table
        label={t("files")}
        head={[t("name"), t("size"), t("changed"), t("download")]}
        rows={(found.value ?? []).map((entry) => ({
          key: entry.path,
          cells: [
            entry.type === FileType.DIRECTORY ? (
              <button key="open" type="button" className="plain" onClick={() => go(entry.path)}>
                {base(entry.path)}/
              </button>
            ) : (
              base(entry.path) + (entry.target && ` → ${entry.target}`)
            ),
            entry.type === FileType.REGULAR ? bytes(Number(entry.size)) : "",
            moment(entry.modifyTime),
            entry.type === FileType.REGULAR && entry.size <= BigInt(LARGEST) ? (
              <button
                key="download"
                type="button"
                aria-label={`${t("download")} ${base(entry.path)}`}
                onClick={() => void attempt(t("download"), () => download(session.id, kernel, entry))}
              >
                ↓
              </button>
            ) : (
              ""
            ),
          ],
        }))}
      />
    </>
  );
}

function base(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

async function download(session: string, hostname: string, entry: FileEntry): Promise<void> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for await (const { output } of kernels.downloadFiles({ session, hostname, files: [{ path: entry.path }] })) {
    const step = output?.step;
    if (step?.case === "data") parts.push(step.value as Uint8Array<ArrayBuffer>);
    if (step?.case === "skipped") throw new Error(step.value.message);
  }
  save(base(entry.path), parts);
}

function sent(step: MessageInitShape<typeof UploadInputSchema>["step"]) {
  return { step: { case: "input" as const, value: { step } } };
}

async function upload(session: string, hostname: string, folder: string, files: File[]): Promise<void> {
  async function* steps() {
    yield { step: { case: "start" as const, value: { session, hostname } } };
    for (const file of files) {
      const path = folder === HOME ? file.name : `${folder}/${file.name}`;
      const sha256 = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
      yield sent({ case: "file", value: { path, size: BigInt(file.size), mode: 0o644, sha256 } });
      for (let at = 0; at < file.size; at += PIECE) {
        const value = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
        yield sent({ case: "data", value });
      }
    }
  }
  for await (const _answer of kernels.uploadFiles(steps())) {
    // Each file is answered; the end says that all were stored.
  }
}
