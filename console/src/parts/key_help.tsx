import { Dialog } from "../design/dialog";
import { type Key, t } from "../text/language";
import { PLACES } from "./places";

const KEYS: readonly { keys: readonly string[]; words: Key }[] = [
  { keys: ["Ctrl K"], words: "paletteOpen" },
  { keys: ["/"], words: "keySearch" },
  { keys: ["n"], words: "newSession" },
  { keys: ["j", "k"], words: "keyMove" },
  { keys: ["Enter"], words: "keyOpen" },
  { keys: ["t"], words: "keyTerminal" },
  { keys: ["l"], words: "keyLogs" },
  { keys: ["x"], words: "keySelect" },
  { keys: ["Esc"], words: "keyClear" },
  { keys: ["?"], words: "keyThis" },
];

/** The keys that work everywhere, and in the list of sessions. */
export default function KeyHelp({ onClose }: { onClose: () => void }) {
  const places = PLACES.flatMap(({ places }) => places.filter(({ letter }) => letter !== undefined));
  const lines = [
    ...KEYS.map(({ keys, words }) => ({ keys, words: t(words) })),
    ...places.map(({ letter = "", key }) => ({ keys: [`g ${letter}`], words: t("keyGo", { page: t(key) }) })),
  ];
  return (
    <Dialog title={t("keys")} onClose={onClose}>
      <dl className="grid grid-cols-1 gap-x-8 gap-y-2 sm:grid-cols-2">
        {lines.map(({ keys, words }) => (
          <div key={words} className="flex items-center gap-3">
            <dt className="flex w-16 shrink-0 gap-1">
              {keys.map((key) => (
                <kbd key={key} className="rounded-sm border border-line bg-sunken px-1.5 py-0.5 text-xs">
                  {key}
                </kbd>
              ))}
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
