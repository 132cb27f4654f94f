import type { MessageInitShape } from "@bufbuild/protobuf";
import { kernels } from "../../api/kernels";
import { type FileEntry, FileType, type UploadInputSchema } from "../../gen/retinue/types/v1/file_pb";

export const HOME = "";
const PIECE = 256 << 10;

/** The kernel whose files are meant. */
export interface Kernel {
  session: string;
  hostname: string;
}

export function base(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

export function inFolder(folder: string, name: string): string {
  return folder === HOME ? name : `${folder}/${name}`;
}

/** Folders first, then by name. */
export async function list(kernel: Kernel, path: string, signal: AbortSignal): Promise<FileEntry[]> {
  const entries: FileEntry[] = [];
  for await (const page of kernels.listFiles({ ...kernel, path }, { signal })) entries.push(...page.entries);
  return entries.sort(
    (one, other) =>
      Number(other.type === FileType.DIRECTORY) - Number(one.type === FileType.DIRECTORY) ||
      one.path.localeCompare(other.path),
  );
}

/** Reads a file; `arrived` is called with the bytes so far. */
export async function read(
  kernel: Kernel,
  path: string,
  arrived: (bytes: number) => void,
  signal?: AbortSignal,
): Promise<Uint8Array<ArrayBuffer>[]> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  for await (const { output } of kernels.downloadFiles({ ...kernel, files: [{ path }] }, signal && { signal })) {
    const step = output?.step;
    if (step?.case === "data") {
      parts.push(step.value as Uint8Array<ArrayBuffer>);
      length += step.value.length;
      arrived(length);
    }
    if (step?.case === "skipped") throw new Error(step.value.message);
  }
  return parts;
}

function input(step: MessageInitShape<typeof UploadInputSchema>["step"]) {
  return { step: { case: "input" as const, value: { step } } };
}

/** Writes files into a folder; `sent` is called with the bytes of all of them so far. */
export async function upload(
  kernel: Kernel,
  folder: string,
  files: readonly File[],
  sent: (bytes: number) => void,
): Promise<void> {
  let length = 0;
  async function* steps() {
    yield { step: { case: "start" as const, value: kernel } };
    for (const file of files) {
      const path = inFolder(folder, file.name);
      const sha256 = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
      yield input({ case: "file", value: { path, size: BigInt(file.size), mode: 0o644, sha256 } });
      for (let at = 0; at < file.size; at += PIECE) {
        const value = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
        yield input({ case: "data", value });
        length += value.length;
        sent(length);
      }
    }
  }
  for await (const _answer of kernels.uploadFiles(steps())) {
    // Each file is answered; the end says that all were stored.
  }
}

export async function makeFolder(kernel: Kernel, path: string): Promise<void> {
  async function* steps() {
    yield { step: { case: "start" as const, value: kernel } };
    yield input({ case: "directory", value: { path } });
  }
  for await (const _answer of kernels.uploadFiles(steps())) {
    // As above.
  }
}
