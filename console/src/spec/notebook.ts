/** A cell as the page has it. */
export interface NotebookCell {
  kind: "code" | "text";
  source: string;
  outputs: NotebookOutput[];
}

export type NotebookOutput =
  | { kind: "text"; text: string; error: boolean }
  | { kind: "media"; forms: { mimeType: string; text: string; base64: string }[] };

interface FileCell {
  cell_type?: unknown;
  source?: unknown;
  outputs?: unknown;
}

/** Writes cells in the format of Jupyter's files, version 4.5. Bytes are in base64, texts as they are. */
export function notebookFile(cells: readonly NotebookCell[], language: string): string {
  const file = {
    cells: cells.map((cell, index) => ({
      id: `cell-${index + 1}`,
      cell_type: cell.kind === "code" ? "code" : "markdown",
      metadata: {},
      source: sourceLines(cell.source),
      ...(cell.kind === "code" && { execution_count: null, outputs: cell.outputs.map(outputOf) }),
    })),
    metadata: {
      kernelspec: { name: language === "python" ? "python3" : language, display_name: language, language },
      language_info: { name: language },
    },
    nbformat: 4,
    nbformat_minor: 5,
  };
  return `${JSON.stringify(file, undefined, 1)}\n`;
}

function sourceLines(text: string): string[] {
  return text === "" ? [] : text.split(/(?<=\n)/);
}

function outputOf(output: NotebookOutput) {
  if (output.kind === "text") {
    return { output_type: "stream", name: output.error ? "stderr" : "stdout", text: sourceLines(output.text) };
  }
  const data = Object.fromEntries(
    output.forms.map(({ mimeType, text, base64 }) => [mimeType, base64 === "" ? sourceLines(text) : base64]),
  );
  return { output_type: "display_data", metadata: {}, data };
}

/** Reads the cells and the language of a Jupyter file. Its outputs are left out: they are of another process. */
export function readNotebook(text: string): { cells: NotebookCell[]; language: string } | undefined {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    return undefined;
  }
  const { cells, metadata, nbformat } = (file ?? {}) as {
    cells?: unknown;
    metadata?: { language_info?: { name?: unknown }; kernelspec?: { language?: unknown } };
    nbformat?: unknown;
  };
  if (!Array.isArray(cells) || nbformat !== 4) return undefined;
  const language = metadata?.language_info?.name ?? metadata?.kernelspec?.language;
  return {
    cells: (cells as FileCell[]).map((cell) => ({
      kind: cell?.cell_type === "code" ? "code" : "text",
      source: joined(cell?.source),
      outputs: [],
    })),
    language: typeof language === "string" ? language : "python",
  };
}

function joined(source: unknown): string {
  return Array.isArray(source) ? source.map(String).join("") : typeof source === "string" ? source : "";
}
