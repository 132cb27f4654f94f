import { expect, it } from "vitest";
import { administration } from "../src/text/en/administration";
import { common } from "../src/text/en/common";
import { endpoints } from "../src/text/en/endpoints";
import { home } from "../src/text/en/home";
import { launch } from "../src/text/en/launch";
import { operations } from "../src/text/en/operations";
import { queue } from "../src/text/en/queue";
import { reasons } from "../src/text/en/reasons";
import { session } from "../src/text/en/session";
import { sessions } from "../src/text/en/sessions";

it("has each key in one area: that of another would replace its words", () => {
  const areas = { administration, common, endpoints, home, launch, operations, queue, reasons, session, sessions };
  const places = new Map<string, string[]>();
  for (const [area, words] of Object.entries(areas))
    for (const key of Object.keys(words)) places.set(key, [...(places.get(key) ?? []), area]);
  expect([...places].filter(([, found]) => found.length > 1)).toEqual([]);
});
