import { beforeEach, expect, it } from "vitest";
import { dropFilter, filterOf, keepColumns, keepFilter, keptColumns, keptFilters } from "../src/live/kept";

let kept: Map<string, string>;
const store = {
  getItem: (key: string) => kept.get(key) ?? null,
  setItem: (key: string, value: string) => void kept.set(key, value),
  removeItem: (key: string) => void kept.delete(key),
};
beforeEach(() => {
  kept = new Map();
});

it("keeps filters by name, in their order, and drops them", () => {
  keepFilter({ name: "mine", query: "q=owner%3Amina" }, store);
  keepFilter({ name: "late", query: "tab=waiting" }, store);
  keepFilter({ name: "mine", query: "q=owner%3Ame" }, store);
  expect(keptFilters(store)).toEqual([
    { name: "late", query: "tab=waiting" },
    { name: "mine", query: "q=owner%3Ame" },
  ]);
  dropFilter("late", store);
  dropFilter("mine", store);
  expect(kept.size).toBe(0);
});

it.each(["", "{", "7", '{"name":"x"}', '[null,7,{"name":"x"}]'])("takes no filter from %s", (text) => {
  kept.set("session-filters", text);
  expect(keptFilters(store)).toEqual([]);
});

it("writes an address always alike, and only what filters", () => {
  expect(filterOf(new URLSearchParams("sort=name:asc&q=a+b&tab=&x=1"))).toBe("q=a+b&sort=name%3Aasc");
});

const KNOWN = ["state", "owner", "age", "group"] as const;
const USUAL = ["state", "owner"] as const;

it("keeps columns in the order of the table, and nothing as long as they are the usual ones", () => {
  expect(keptColumns(KNOWN, USUAL, store)).toEqual(USUAL);
  keepColumns(["group", "state"], USUAL, store);
  expect(keptColumns(KNOWN, USUAL, store)).toEqual(["state", "group"]);
  keepColumns([], USUAL, store);
  expect(keptColumns(KNOWN, USUAL, store)).toEqual([]);
  keepColumns(["owner", "state"], USUAL, store);
  expect(kept.size).toBe(0);
});

it("leaves out a column that this version does not have", () => {
  kept.set("session-columns", '["state","moon"]');
  expect(keptColumns(KNOWN, USUAL, store)).toEqual(["state"]);
});
