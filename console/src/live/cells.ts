import { type CodeEvent, type CodeMediaForm, CodeStatus } from "../gen/retinue/types/v1/code_pb";

export type Output = { kind: "text"; text: string; error: boolean } | { kind: "media"; forms: CodeMediaForm[] };

export interface Cell {
  id: string;
  kind: "code" | "text";
  code: string;
  outputs: Output[];
  state: "new" | "queued" | "running" | "done" | "failed" | "asks";
  prompt: string;
}

export function newCell(code = "", kind: Cell["kind"] = "code"): Cell {
  return { id: crypto.randomUUID(), kind, code, outputs: [], state: "new", prompt: "" };
}

export function isBusy(cell: Cell): boolean {
  return cell.state === "running" || cell.state === "queued" || cell.state === "asks";
}

/** Returns the cell after an event of its run. */
export function after(cell: Cell, { event }: CodeEvent): Cell {
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

export function base64(data: Uint8Array): string {
  return (
    (data as Uint8Array & { toBase64?: () => string }).toBase64?.() ??
    btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""))
  );
}
