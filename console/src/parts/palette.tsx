import { Autocomplete } from "@base-ui/react/autocomplete";
import { Dialog } from "@base-ui/react/dialog";
import { CirclePlus, LogOut, type LucideIcon, Moon, Rocket, Search, Server, SquareTerminal, Sun } from "lucide-react";
import { useMemo, useState } from "react";
import { useNavigate } from "react-router";
import { endpoints } from "../api/endpoints";
import { fleet } from "../api/fleet";
import { shownState } from "../live/state";
import { t } from "../text/language";
import { PLACES } from "./places";
import { signOut } from "./sign_out";
import { useLoaded, useSessions } from "./store";
import { chooseTheme } from "./theme";

interface Entry {
  id: string;
  label: string;
  note: string;
  icon: LucideIcon;
  act: () => void;
}

interface Section {
  value: string;
  items: Entry[];
}

/** So many of each kind are offered: whoever seeks another types more of its name. */
const OFFERED = 8;

/** Finds sessions, endpoints, nodes, pages and actions by a part of their names. */
export default function Palette({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const sessions = useSessions();
  const [text, setText] = useState("");
  const loaded = useLoaded("palette", async (signal) => {
    const [served, nodes] = await Promise.all([
      endpoints.listEndpoints({ pageSize: 500 }, { signal }),
      fleet.listAgents({ pageSize: 500 }, { signal }),
    ]);
    return { endpoints: served.endpoints, agents: nodes.agents };
  });
  const sections = useMemo<Section[]>(() => {
    const go = (to: string) => () => navigate(to);
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = (entries: Entry[]) =>
      entries.filter(({ label, note }) => words.every((word) => `${label} ${note}`.toLowerCase().includes(word)));
    const actions: Entry[] = [
      { id: "new", label: t("newSession"), note: "n", icon: CirclePlus, act: go("/sessions/new") },
      { id: "light", label: `${t("theme")}: ${t("light")}`, note: "", icon: Sun, act: () => chooseTheme("light") },
      { id: "dark", label: `${t("theme")}: ${t("dark")}`, note: "", icon: Moon, act: () => chooseTheme("dark") },
      { id: "out", label: t("signOut"), note: "", icon: LogOut, act: () => void signOut() },
    ];
    const pages = PLACES.flatMap(({ places }) =>
      places.map(({ path, key, icon, letter }) => ({
        id: path,
        label: t(key),
        note: letter === undefined ? "" : `g ${letter}`,
        icon,
        act: go(path),
      })),
    );
    const known: Entry[] = sessions.map((session) => ({
      id: session.id,
      label: session.spec?.name || session.id,
      note: `${shownState(session).word} · ${session.owner}`,
      icon: SquareTerminal,
      act: go(`/sessions/${session.id}`),
    }));
    const served: Entry[] = (loaded.value?.endpoints ?? []).map((endpoint) => ({
      id: endpoint.id,
      label: endpoint.spec?.name ?? endpoint.id,
      note: endpoint.owner,
      icon: Rocket,
      act: go(`/endpoints/${endpoint.id}`),
    }));
    const nodes: Entry[] = (loaded.value?.agents ?? []).map((agent) => ({
      id: agent.id,
      label: agent.id,
      note: "",
      icon: Server,
      act: go(`/cluster?q=${encodeURIComponent(agent.id)}`),
    }));
    return [
      { value: t("actions"), items: matching(actions) },
      { value: t("pages"), items: matching(pages) },
      { value: t("sessions"), items: matching(known) },
      { value: t("endpoints"), items: matching(served) },
      { value: t("nodes"), items: matching(nodes) },
    ]
      .map((section) => ({ ...section, items: section.items.slice(0, OFFERED) }))
      .filter(({ items }) => items.length > 0);
  }, [text, sessions, loaded.value, navigate]);
  return (
    <Dialog.Root open onOpenChange={(open) => !open && onClose()}>
      <Dialog.Portal>
        <Dialog.Backdrop className="fixed inset-0 z-40 bg-veil" />
        <Dialog.Popup
          aria-label={t("paletteOpen")}
          className="fixed top-[12vh] left-1/2 z-40 flex max-h-[70vh] w-[min(38rem,calc(100vw-2rem))] -translate-x-1/2 flex-col overflow-hidden rounded-lg border border-line bg-card text-ink shadow-pop outline-none"
        >
          <Autocomplete.Root
            items={sections}
            inline
            open
            mode="none"
            autoHighlight="always"
            value={text}
            onValueChange={setText}
            itemToStringValue={(entry: Entry) => entry.label}
          >
            <div className="flex items-center gap-2 border-b border-line px-4">
              <Search size={17} aria-hidden="true" className="text-quiet" />
              <Autocomplete.Input
                aria-label={t("paletteOpen")}
                placeholder={t("paletteHelp")}
                className="h-12 grow bg-transparent text-lg outline-none placeholder:text-quiet"
              />
            </div>
            <Autocomplete.Empty className="p-6 text-center text-quiet empty:hidden">
              {t("nothingMatches")}
            </Autocomplete.Empty>
            <Autocomplete.List className="min-h-0 overflow-auto p-2 empty:hidden">
              {(section: Section) => (
                <Autocomplete.Group key={section.value} items={section.items}>
                  <Autocomplete.GroupLabel className="px-2.5 pt-2 pb-1 text-xs font-medium text-quiet">
                    {section.value}
                  </Autocomplete.GroupLabel>
                  <Autocomplete.Collection>
                    {(entry: Entry) => (
                      <Autocomplete.Item
                        key={entry.id}
                        value={entry}
                        onClick={() => {
                          onClose();
                          entry.act();
                        }}
                        className="flex cursor-default items-center gap-2.5 rounded-md px-2.5 py-1.5 outline-none data-highlighted:bg-accent-soft data-highlighted:text-accent"
                      >
                        <entry.icon size={16} aria-hidden="true" className="shrink-0" />
                        <span className="truncate" title={entry.label}>
                          {entry.label}
                        </span>
                        <span className="ml-auto shrink-0 text-xs text-quiet">{entry.note}</span>
                      </Autocomplete.Item>
                    )}
                  </Autocomplete.Collection>
                </Autocomplete.Group>
              )}
            </Autocomplete.List>
          </Autocomplete.Root>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
