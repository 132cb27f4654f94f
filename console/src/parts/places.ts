import {
  Boxes,
  FileClock,
  FolderKanban,
  FolderTree,
  Gauge,
  House,
  LayoutTemplate,
  ListOrdered,
  type LucideIcon,
  Rocket,
  Scale,
  Server,
  SquareTerminal,
  Users,
} from "lucide-react";
import type { Key } from "../text/language";

export interface Place {
  path: string;
  key: Key;
  icon: LucideIcon;
  /** The key that goes there after `g`. */
  letter?: string;
}

/** Where one can go, in the groups of the side bar. */
export const PLACES: readonly { group: Key | undefined; places: readonly Place[] }[] = [
  { group: undefined, places: [{ path: "/home", key: "home", icon: House, letter: "h" }] },
  {
    group: "work",
    places: [
      { path: "/sessions", key: "sessions", icon: SquareTerminal, letter: "s" },
      { path: "/endpoints", key: "endpoints", icon: Rocket, letter: "e" },
      { path: "/files", key: "files", icon: FolderTree },
      { path: "/templates", key: "templates", icon: LayoutTemplate, letter: "t" },
    ],
  },
  {
    group: "cluster",
    places: [
      { path: "/cluster", key: "nodes", icon: Server, letter: "c" },
      { path: "/queue", key: "queue", icon: ListOrdered, letter: "q" },
      { path: "/fairness", key: "fairness", icon: Scale, letter: "f" },
    ],
  },
  {
    group: "administration",
    places: [
      { path: "/accounts", key: "accounts", icon: Users },
      { path: "/projects", key: "projects", icon: FolderKanban },
      { path: "/quotas", key: "quotas", icon: Gauge },
      { path: "/groups", key: "groups", icon: Boxes },
      { path: "/audit", key: "audit", icon: FileClock },
    ],
  },
];
