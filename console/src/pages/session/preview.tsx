import { useState } from "react";
import { Code, type CodeLanguage } from "../../design/code";
import { Dialog } from "../../design/dialog";
import { Skeleton } from "../../design/states";
import type { FileEntry } from "../../gen/retinue/types/v1/file_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { bytes } from "../../text/format";
import { t } from "../../text/language";
import { base, type Kernel, read } from "./transfer";

const IMAGES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
};
const LANGUAGES: Record<string, CodeLanguage> = {
  json: "json",
  ipynb: "json",
  py: "python",
  sh: "bash",
  yaml: "yaml",
  yml: "yaml",
};
const LARGEST_IMAGE = 16 << 20;
const LARGEST_TEXT = 1 << 20;
/** Longer texts are shown without colours, which take time. */
const LARGEST_COLOURED = 100_000;

/** Whether a file is small enough to be looked at. What is no text and no image is seen when it has been read. */
export function canPreview(entry: FileEntry): boolean {
  return entry.size <= BigInt(extension(entry) in IMAGES ? LARGEST_IMAGE : LARGEST_TEXT);
}

function extension(entry: FileEntry): string {
  return base(entry.path).toLowerCase().split(".").at(-1) ?? "";
}

type Content = { kind: "image"; url: string } | { kind: "text"; text: string } | { kind: "bytes" };

/** A file as an image or a text. */
export function Preview({ kernel, entry, onClose }: { kernel: Kernel; entry: FileEntry; onClose: () => void }) {
  const [got, setGot] = useState(0);
  const found = useLoaded(
    `preview ${kernel.session} ${kernel.hostname} ${entry.path} ${entry.version}`,
    async (signal) => contentOf(entry, await read(kernel, entry.path, setGot, signal)),
  );
  const content = found.value;
  return (
    <Dialog title={base(entry.path)} wide onClose={onClose}>
      <Trouble problem={found.problem} retry={found.reload} />
      {content === undefined && found.problem === undefined && (
        <>
          <Skeleton lines={6} />
          <p className="text-sm text-quiet">{`${bytes(got)} / ${bytes(Number(entry.size))}`}</p>
        </>
      )}
      {content?.kind === "image" && (
        <img className="max-h-[70vh] self-center object-contain" alt={base(entry.path)} src={content.url} />
      )}
      {content?.kind === "text" &&
        (content.text === "" ? (
          <p className="text-quiet">{t("emptyFile")}</p>
        ) : (
          <Code
            code={content.text}
            language={content.text.length > LARGEST_COLOURED ? "text" : (LANGUAGES[extension(entry)] ?? "text")}
            label={base(entry.path)}
          />
        ))}
      {content?.kind === "bytes" && <p className="text-quiet">{t("noPreview")}</p>}
    </Dialog>
  );
}

async function contentOf(entry: FileEntry, parts: BlobPart[]): Promise<Content> {
  const type = IMAGES[extension(entry)];
  const blob = new Blob(parts, type === undefined ? {} : { type });
  if (type !== undefined) return { kind: "image", url: await dataUrl(blob) };
  const data = new Uint8Array(await blob.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return text.includes("\0") ? { kind: "bytes" } : { kind: "text", text };
  } catch {
    return { kind: "bytes" };
  }
}

function dataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
