import type { Key } from "../en";
import { common } from "./common";
import { endpoints } from "./endpoints";
import { home } from "./home";
import { launch } from "./launch";
import { operations } from "./operations";
import { queue } from "./queue";
import { reasons } from "./reasons";
import { session } from "./session";
import { sessions } from "./sessions";

/** All words of the pages in Korean. */
export const ko: Record<Key, string> = {
  ...common,
  ...home,
  ...sessions,
  ...session,
  ...launch,
  ...endpoints,
  ...operations,
  ...queue,
  ...reasons,
};
