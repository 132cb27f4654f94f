const MAX_LINES = 200_000;
const LONGEST_LINE = 16 * 1024;

/** The lines of one kernel's output, the newest `MAX_LINES`, and where reading continues. */
export class LogLines {
  private lines: string[] = [];
  private open = "";
  attempt = 0;
  offset = 0n;

  /** Takes a piece of the output that ends at `endOffset`. */
  add(text: string, attempt: number, endOffset: bigint): void {
    if (attempt !== this.attempt && this.open !== "") this.close();
    this.attempt = attempt;
    this.offset = endOffset;
    const parts = (this.open + text).split("\n");
    this.open = parts.pop() ?? "";
    for (const part of parts) this.push(part);
    // A line that never ends is shown in pieces.
    while (this.open.length > LONGEST_LINE) {
      this.lines.push(this.open.slice(0, LONGEST_LINE));
      this.open = this.open.slice(LONGEST_LINE);
    }
    if (this.lines.length > MAX_LINES * 1.1) this.lines = this.lines.slice(-MAX_LINES);
  }

  all(): string[] {
    return this.open === "" ? this.lines.slice() : [...this.lines, this.open];
  }

  private close(): void {
    this.push(this.open);
    this.open = "";
  }

  private push(line: string): void {
    const text = line.endsWith("\r") ? line.slice(0, -1) : line;
    for (let at = 0; at === 0 || at < text.length; at += LONGEST_LINE) {
      this.lines.push(text.slice(at, at + LONGEST_LINE));
    }
  }
}
