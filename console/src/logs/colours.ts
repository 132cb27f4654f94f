/** Colours and weights of a log's own marks, as the console's tokens have them. */
const COLOURS: Record<string, string> = {
  bold: "font-bold",
  fg1: "text-bad",
  fg2: "text-good",
  fg3: "text-warn",
  fg4: "text-busy",
  fg5: "text-series-4",
  fg6: "text-series-6",
};

/** The classes of a look of `pieces`, which is names separated by spaces. */
export function classesOf(look: string): string | undefined {
  if (look === "") return undefined;
  return look
    .split(" ")
    .map((name) => COLOURS[name])
    .filter(Boolean)
    .join(" ");
}
