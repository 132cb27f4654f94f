import type { Problem } from "../api/problem";
import type { Refusals } from "./form";

/** Returns the server's refusals by field; their places begin below `spec`. */
export function refusalsOf(problem: Problem | undefined): Refusals {
  const found: Record<string, string> = {};
  for (const { field, description } of problem?.fields ?? []) {
    const place = field.replace(/^(template\.)?spec\./, "");
    found[place] = found[place] === undefined ? description : `${found[place]}; ${description}`;
  }
  return found;
}

/** Returns why a field, or anything in it, is refused. */
export function refusalOf(refusals: Refusals, ...places: string[]): string | undefined {
  const within = Object.entries(refusals)
    .filter(([place]) =>
      places.some((one) => place === one || place.startsWith(`${one}.`) || place.startsWith(`${one}[`)),
    )
    .map(([, words]) => words);
  return within.length > 0 ? within.join("; ") : undefined;
}

/** Refusals of fields that the page does not show, in words with their place. */
export function elsewhere(refusals: Refusals, shown: readonly string[]): string[] {
  return Object.entries(refusals)
    .filter(([place]) => refusalOf({ [place]: "" }, ...shown) === undefined)
    .map(([place, words]) => `${place}: ${words}`);
}
