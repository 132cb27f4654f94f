import { problemOf } from "../api/problem";
import { t } from "../text/language";

/** One thing to say: `undo` takes back what was done, where that is possible. */
export interface Notice {
  title: string;
  type: "done" | "problem";
  description?: string | undefined;
  undo?: { label: string; act: () => void } | undefined;
}

let show: ((notice: Notice) => void) | undefined;
const waiting: Notice[] = [];
let wanted: (() => void) | undefined;

/** What draws notices is loaded with the first of them: `load` does that. */
export function whenWanted(load: () => void): void {
  wanted = load;
}

/** Takes the notices from now on, and those that came before. */
export function drawWith(draw: (notice: Notice) => void): void {
  show = draw;
  for (const notice of waiting.splice(0)) draw(notice);
}

function say(notice: Notice): void {
  if (show !== undefined) {
    show(notice);
    return;
  }
  waiting.push(notice);
  wanted?.();
}

/** Says that something was done. */
export function notify(title: string, options: { description?: string; undo?: () => void } = {}): void {
  const { description, undo } = options;
  say({ title, type: "done", description, undo: undo && { label: t("undo"), act: undo } });
}

/** Says in the server's words that something was refused or failed. */
export function notifyProblem(title: string, error: unknown): void {
  say({ title, type: "problem", description: problemOf(error).message });
}
