import {
  Download,
  File as FileIcon,
  FileSymlink,
  Folder,
  FolderOpen,
  FolderPlus,
  House,
  RefreshCw,
  Upload,
} from "lucide-react";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { type Problem, problemOf } from "../../api/problem";
import { Button, IconButton } from "../../design/button";
import { Card } from "../../design/card";
import { Dialog } from "../../design/dialog";
import { Select, TextField } from "../../design/fields";
import { DropZone, FileButton } from "../../design/files";
import { Meter } from "../../design/meter";
import { notify } from "../../design/notify";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { type FileEntry, FileType } from "../../gen/retinue/types/v1/file_pb";
import { Trouble } from "../../parts/basics";
import { save } from "../../parts/save";
import { useLoaded } from "../../parts/store";
import { bytes, moment } from "../../text/format";
import { t } from "../../text/language";
import { canPreview, Preview } from "./preview";
import { base, HOME, inFolder, list, makeFolder, read, upload } from "./transfer";

/** Larger files are for `retinue cp`: a page holds a file in memory before it is saved. */
const LARGEST = 1 << 30;

/** The files of a kernel's work directory: a list of one folder at a time. Where it is stands in the address. */
export default function Files({ session }: { session: Session }) {
  const [parameters, setParameters] = useSearchParams();
  const path = parameters.get("path") ?? HOME;
  const hostname = parameters.get("kernel") ?? "main1";
  const kernel = { session: session.id, hostname };
  const running = session.state === SessionState.RUNNING;
  const [problem, setProblem] = useState<Problem>();
  const [moving, setMoving] = useState<{ words: string; done: number; all: number }>();
  const [shown, setShown] = useState<FileEntry>();
  const [naming, setNaming] = useState(false);
  const found = useLoaded(`files ${session.id} ${hostname} ${path} ${running}`, async (signal) =>
    running ? list(kernel, path, signal) : [],
  );
  const go = (to: string, host = hostname) =>
    setParameters((before) => {
      const next = new URLSearchParams(before);
      next.set("kernel", host);
      next.set("path", to);
      return next;
    });
  const move = async (words: string, all: number, act: (progress: (done: number) => void) => Promise<void>) => {
    setMoving({ words, done: 0, all });
    try {
      await act((done) => setMoving({ words, done, all }));
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setMoving(undefined);
  };
  const put = async (files: File[]) => {
    const all = files.reduce((sum, file) => sum + file.size, 0);
    const [first] = files;
    const words = files.length === 1 ? (first?.name ?? "") : t("filesInAll", { count: files.length });
    await move(t("uploading", { name: words }), all, async (progress) => {
      await upload(kernel, path, files, progress);
      notify(t("uploaded", { name: words }));
    });
    found.reload();
  };
  const get = (entry: FileEntry) =>
    move(t("downloading", { name: base(entry.path) }), Number(entry.size), async (progress) =>
      save(base(entry.path), await read(kernel, entry.path, progress)),
    );
  if (!running) {
    return (
      <Empty icon={<FolderOpen size={32} aria-hidden="true" />} title={t("filesNeedRunning")}>
        {session.message}
      </Empty>
    );
  }
  const parts = path.split("/").filter((part) => part !== "");
  const entries = found.value;
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <Select
          className="w-32"
          label={t("kernel")}
          labelHidden
          options={session.kernels.map((each) => ({ value: each.hostname, label: each.hostname }))}
          value={hostname}
          onChange={(host) => go(HOME, host)}
        />
        <nav aria-label={t("folder")} className="flex min-w-0 grow flex-wrap items-center">
          <Button
            look="quiet"
            size="small"
            aria-label="~"
            icon={<House size={15} aria-hidden="true" />}
            onClick={() => go(HOME)}
          />
          {parts.map((part, index) => (
            <span key={parts.slice(0, index + 1).join("/")} className="inline-flex min-w-0 items-center text-quiet">
              /
              <Button
                look="quiet"
                size="small"
                className="shrink"
                onClick={() => go(parts.slice(0, index + 1).join("/"))}
              >
                <span className="max-w-60 truncate" title={part}>
                  {part}
                </span>
              </Button>
            </span>
          ))}
        </nav>
        <IconButton label={t("readAgain")} look="plain" onClick={found.reload}>
          <RefreshCw size={15} aria-hidden="true" />
        </IconButton>
        <Button icon={<FolderPlus size={15} aria-hidden="true" />} onClick={() => setNaming(true)}>
          {t("newFolder")}
        </Button>
        <FileButton
          label={t("upload")}
          look="primary"
          icon={<Upload size={15} aria-hidden="true" />}
          multiple
          disabled={moving !== undefined}
          onFiles={(files) => void put(files)}
        />
      </div>
      {moving !== undefined && (
        <div role="status">
          <Meter
            label={moving.words}
            used={moving.done}
            limit={moving.all}
            words={`${bytes(moving.done)} / ${bytes(moving.all)}`}
          />
        </div>
      )}
      <Trouble problem={problem ?? found.problem} retry={found.reload} />
      <DropZone
        words={t("dropHere", { folder: `~/${path}` })}
        disabled={moving !== undefined}
        onFiles={(files) => void put(files)}
      >
        <Card flush>
          {entries === undefined && found.problem === undefined ? (
            <Skeleton lines={5} className="p-4" />
          ) : (
            <Table
              label={t("files")}
              head={[t("name"), t("size"), t("changed"), t("actions")]}
              numeric={[t("size")]}
              empty={
                <Empty icon={<Folder size={30} aria-hidden="true" />} title={t("emptyFolder")}>
                  {t("dropHelp")}
                </Empty>
              }
              rows={(entries ?? []).map((entry) => ({
                key: entry.path,
                cells: [
                  <Name key="name" entry={entry} onOpen={() => go(entry.path)} onShow={() => setShown(entry)} />,
                  <span key="size" className="whitespace-nowrap">
                    {entry.type === FileType.REGULAR ? bytes(Number(entry.size)) : ""}
                  </span>,
                  <span key="changed" className="whitespace-nowrap text-quiet">
                    {moment(entry.modifyTime)}
                  </span>,
                  entry.type === FileType.REGULAR && entry.size <= BigInt(LARGEST) ? (
                    <IconButton
                      key="download"
                      size="small"
                      label={`${t("download")} ${base(entry.path)}`}
                      disabled={moving !== undefined}
                      onClick={() => void get(entry)}
                    >
                      <Download size={15} aria-hidden="true" />
                    </IconButton>
                  ) : (
                    ""
                  ),
                ],
              }))}
            />
          )}
        </Card>
      </DropZone>
      {shown !== undefined && <Preview kernel={kernel} entry={shown} onClose={() => setShown(undefined)} />}
      {naming && (
        <NewFolder
          onClose={() => setNaming(false)}
          onMake={async (name) => {
            await makeFolder(kernel, inFolder(path, name));
            found.reload();
          }}
        />
      )}
    </div>
  );
}

function Name({ entry, onOpen, onShow }: { entry: FileEntry; onOpen: () => void; onShow: () => void }) {
  const name = base(entry.path);
  const cut = (
    <span className="max-w-[min(32rem,45vw)] truncate" title={name}>
      {entry.type === FileType.DIRECTORY ? `${name}/` : name}
    </span>
  );
  if (entry.type === FileType.DIRECTORY) {
    return (
      <Button
        look="quiet"
        size="small"
        className="-ml-2"
        icon={<Folder size={15} aria-hidden="true" className="text-accent" />}
        onClick={onOpen}
      >
        {cut}
      </Button>
    );
  }
  if (entry.type === FileType.REGULAR && canPreview(entry)) {
    return (
      <Button
        look="quiet"
        size="small"
        className="-ml-2 font-normal"
        icon={<FileIcon size={15} aria-hidden="true" className="text-quiet" />}
        onClick={onShow}
      >
        {cut}
      </Button>
    );
  }
  return (
    <span className="inline-flex h-7 items-center gap-1.5 text-sm">
      {entry.type === FileType.LINK ? (
        <FileSymlink size={15} aria-hidden="true" className="text-quiet" />
      ) : (
        <FileIcon size={15} aria-hidden="true" className="text-quiet" />
      )}
      {cut}
      {entry.target && (
        <span className="truncate text-quiet" title={entry.target}>
          → {entry.target}
        </span>
      )}
    </span>
  );
}

function NewFolder({ onClose, onMake }: { onClose: () => void; onMake: (name: string) => Promise<void> }) {
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const make = async () => {
    setBusy(true);
    try {
      await onMake(name);
      onClose();
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };
  return (
    <Dialog
      title={t("newFolder")}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button look="primary" busy={busy} disabled={name.trim() === ""} onClick={() => void make()}>
            {t("create")}
          </Button>
        </>
      }
    >
      <TextField
        label={t("name")}
        value={name}
        onChange={setName}
        onKeyDown={(event) => {
          if (event.key === "Enter" && name.trim() !== "") void make();
        }}
      />
      <Trouble problem={problem} />
    </Dialog>
  );
}
