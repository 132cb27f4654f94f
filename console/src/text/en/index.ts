import { common } from "./common";
import { endpoints } from "./endpoints";
import { home } from "./home";
import { launch } from "./launch";
import { operations } from "./operations";
import { queue } from "./queue";
import { reasons } from "./reasons";
import { session } from "./session";
import { sessions } from "./sessions";

/** All words of the pages in English, by area. */
export const en = {
  ...common,
  ...home,
  ...sessions,
  ...session,
  ...launch,
  ...endpoints,
  ...operations,
  ...queue,
  ...reasons,
} as const;

export type Key = keyof typeof en;
