import { type Key, t } from "../text/language";

/** An error of a text that the form cannot read, with the place for it to be shown at. */
export class UnreadableText extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message);
  }
}

/** The error with words of the pages; `text` stands in them. */
export function unreadable(field: string, key: Key, text: string): UnreadableText {
  return new UnreadableText(field, t(key, { text }));
}

/** Splits a line as a POSIX shell does, without expansions. Throws UnreadableText on an open quote. */
export function splitWords(field: string, line: string): string[] {
  const words: string[] = [];
  let word: string | undefined;
  let quote = "";
  for (let index = 0; index < line.length; index++) {
    const character = line.charAt(index);
    if (quote === "'") {
      if (character === "'") quote = "";
      else word += character;
    } else if (character === "\\" && (quote === "" || /["\\$`]/.test(line.charAt(index + 1)))) {
      index += 1;
      word = (word ?? "") + line.charAt(index);
    } else if (quote === '"') {
      if (character === '"') quote = "";
      else word += character;
    } else if (character === "'" || character === '"') {
      quote = character;
      word ??= "";
    } else if (/\s/.test(character)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else {
      word = (word ?? "") + character;
    }
  }
  if (quote !== "") throw unreadable(field, "quoteOpen", quote);
  if (word !== undefined) words.push(word);
  return words;
}

/** Writes an argument so that a POSIX shell reads it as one word. */
export function quoted(word: string): string {
  return /^[A-Za-z0-9_./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
