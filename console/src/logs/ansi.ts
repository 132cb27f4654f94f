/** A piece of a line with one look: classes for colours and weight, as `fg1 bold`. */
export interface Piece {
  text: string;
  look: string;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: control sequences begin by one
const SEQUENCE = /\x1b(?:\[([0-9;:]*)[ -/]*([@-~])|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is taken away
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Keeps colours (SGR) of a line, and drops all other control sequences: a log cannot move, link or overwrite. */
export function pieces(line: string): Piece[] {
  const found: Piece[] = [];
  let look = new Map<string, string>();
  let end = 0;
  const add = (text: string) => {
    const shown = text.replace(CONTROLS, "");
    if (shown !== "") found.push({ text: shown, look: [...look.values()].join(" ") });
  };
  for (const match of line.matchAll(SEQUENCE)) {
    add(line.slice(end, match.index));
    end = match.index + match[0].length;
    if (match[2] === "m") look = styled(look, match[1] ?? "");
  }
  add(line.slice(end));
  return found;
}

function styled(look: Map<string, string>, parameters: string): Map<string, string> {
  const next = new Map(look);
  const codes = parameters.split(/[;:]/).map(Number);
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index] ?? 0;
    if (code === 0) next.clear();
    else if (code === 1) next.set("weight", "bold");
    else if (code === 22) next.delete("weight");
    else if (code >= 30 && code <= 37) next.set("colour", `fg${code - 30}`);
    else if (code >= 90 && code <= 97) next.set("colour", `fg${code - 90}`);
    else if (code === 39) next.delete("colour");
    // Colours of a palette or by their parts are not shown; their numbers are no codes.
    else if (code === 38 || code === 48) index += codes[index + 1] === 5 ? 2 : 4;
  }
  return next;
}
