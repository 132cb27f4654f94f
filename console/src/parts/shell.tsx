import { Menu as Bars, ChevronsLeft, ChevronsRight, Keyboard, Search, WifiOff } from "lucide-react";
import { Suspense, useContext, useEffect, useRef, useState } from "react";
import { NavLink, Outlet, useLocation, useNavigate } from "react-router";
import { IconButton } from "../design/button";
import { classes } from "../design/classes";
import { whenWanted } from "../design/notify";
import { Tooltip } from "../design/tooltip";
import { clock } from "../text/format";
import { t } from "../text/language";
import { AccountButton } from "./account_button";
import { lazy } from "./lazy";
import { PLACES, type Place } from "./places";
import { StoreContext, useStatus } from "./store";
import { whenTerminalsWanted } from "./terminals";

const Toasts = lazy(() => import("../design/toast"));
const Palette = lazy(() => import("./palette"));
const Drawer = lazy(() => import("./drawer"));
const KeyHelp = lazy(() => import("./key_help"));
const AccountMenu = lazy(() => import("./account_menu"));
const TerminalHost = lazy(() => import("./terminal_host"));

const NARROW = "sidebar";
const GO: Record<string, string> = Object.fromEntries(
  PLACES.flatMap(({ places }) => places.flatMap(({ letter, path }) => (letter ? [[letter, path]] : []))),
);

/** What surrounds all pages: where one can go, who one is, and whether what is shown is live. */
export function Shell() {
  const [help, setHelp] = useState(false);
  const [palette, setPalette] = useState(false);
  const [drawer, setDrawer] = useState(false);
  const [notices, setNotices] = useState(false);
  useEffect(() => whenWanted(() => setNotices(true)), []);
  const [terminals, setTerminals] = useState(false);
  useEffect(() => whenTerminalsWanted(() => setTerminals(true)), []);
  const { pathname } = useLocation();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useKeys({ help: () => setHelp(true), palette: () => setPalette(true) });
  // Another page begins at its top, also for who hears it.
  // biome-ignore lint/correctness/useExhaustiveDependencies: on each page
  useEffect(() => {
    setDrawer(false);
    if (first.current) first.current = false;
    else main.current?.focus();
  }, [pathname.split("/")[1]]);
  return (
    <div className="flex h-full">
      <a
        className="sr-only focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50 focus:rounded-md focus:bg-card focus:p-2 focus:shadow-pop"
        href="#main"
      >
        {t("skip")}
      </a>
      <SideBar />
      <div className="flex min-w-0 grow flex-col">
        <header className="flex h-12 shrink-0 items-center gap-2 border-b border-line bg-card px-3">
          <span className="md:hidden">
            <IconButton label={t("menu")} onClick={() => setDrawer(true)}>
              <Bars size={18} aria-hidden="true" />
            </IconButton>
          </span>
          <button
            type="button"
            onClick={() => setPalette(true)}
            className="flex h-8.5 min-w-0 grow items-center gap-2 rounded-md border border-line bg-page px-3 text-quiet hover:border-edge sm:max-w-md"
          >
            <Search size={15} aria-hidden="true" className="shrink-0" />
            <span className="truncate">{t("paletteOpen")}</span>
            <kbd className="ml-auto hidden rounded-sm border border-line bg-card px-1.5 text-xs sm:inline">Ctrl K</kbd>
          </button>
          <span className="grow" />
          <IconButton label={t("keys")} className="max-sm:hidden" onClick={() => setHelp(true)}>
            <Keyboard size={17} aria-hidden="true" />
          </IconButton>
          <Account />
        </header>
        <StatusLine />
        <main id="main" ref={main} tabIndex={-1} className="relative min-h-0 grow overflow-auto">
          <Outlet />
          {terminals && (
            <Suspense>
              <TerminalHost />
            </Suspense>
          )}
        </main>
      </div>
      {drawer && (
        <Suspense>
          <Drawer onClose={() => setDrawer(false)}>
            <Places narrow={false} />
          </Drawer>
        </Suspense>
      )}
      {palette && (
        <Suspense>
          <Palette onClose={() => setPalette(false)} />
        </Suspense>
      )}
      {help && (
        <Suspense>
          <KeyHelp onClose={() => setHelp(false)} />
        </Suspense>
      )}
      {notices && (
        <Suspense>
          <Toasts />
        </Suspense>
      )}
    </div>
  );
}

/** The navigation beside the page; by choice its icons alone. On a telephone it is a drawer. */
function SideBar() {
  const [narrow, setNarrow] = useState(() => localStorage.getItem(NARROW) === "narrow");
  const turn = () => {
    if (narrow) localStorage.removeItem(NARROW);
    else localStorage.setItem(NARROW, "narrow");
    setNarrow(!narrow);
  };
  return (
    <div className={classes("hidden shrink-0 flex-col border-r border-line bg-card md:flex", narrow ? "w-14" : "w-56")}>
      <NavLink
        to="/home"
        aria-label="Retinue"
        className="flex h-12 items-center gap-2 border-b border-line px-4 text-lg font-bold text-ink no-underline"
      >
        <Mark />
        {!narrow && "Retinue"}
      </NavLink>
      <div className="min-h-0 grow overflow-y-auto p-2">
        <Places narrow={narrow} />
      </div>
      <div className="border-t border-line p-2">
        <IconButton label={t(narrow ? "widen" : "narrow")} onClick={turn}>
          {narrow ? <ChevronsRight size={17} aria-hidden="true" /> : <ChevronsLeft size={17} aria-hidden="true" />}
        </IconButton>
      </div>
    </div>
  );
}

/** The mark of the console: kernels around one that leads them. */
function Mark() {
  return (
    <svg viewBox="0 0 20 20" className="size-5 shrink-0 text-accent" aria-hidden="true">
      <circle cx="10" cy="10" r="4" fill="currentColor" />
      {[0, 72, 144, 216, 288].map((angle) => (
        <circle
          key={angle}
          cx="10"
          cy="2.2"
          r="1.7"
          fill="currentColor"
          opacity="0.65"
          transform={`rotate(${angle} 10 10)`}
        />
      ))}
    </svg>
  );
}

function Places({ narrow }: { narrow: boolean }) {
  return (
    <nav aria-label={t("menu")} className="flex flex-col gap-4">
      {PLACES.map(({ group, places }) => (
        <div key={group ?? "top"} className="flex flex-col gap-0.5">
          {group !== undefined && !narrow && (
            <span className="px-2.5 pb-1 text-2xs font-semibold tracking-wide text-quiet uppercase">{t(group)}</span>
          )}
          {group !== undefined && narrow && <span className="mx-2 mb-1 h-px bg-line" />}
          {places.map((place) => (
            <PlaceLink key={place.path} place={place} narrow={narrow} />
          ))}
        </div>
      ))}
    </nav>
  );
}

function PlaceLink({ place, narrow }: { place: Place; narrow: boolean }) {
  const link = (
    <NavLink
      to={place.path}
      aria-label={narrow ? t(place.key) : undefined}
      className={({ isActive }) =>
        classes(
          "flex h-8.5 items-center gap-2.5 rounded-md px-2.5 font-medium no-underline hover:bg-sunken",
          isActive ? "bg-accent-soft text-accent" : "text-ink",
        )
      }
    >
      <place.icon size={17} aria-hidden="true" className="shrink-0" />
      {!narrow && t(place.key)}
    </NavLink>
  );
  return narrow ? <Tooltip label={t(place.key)}>{link}</Tooltip> : link;
}

/** The button of the account's menu. The menu itself is loaded when it is first asked for. */
function Account() {
  const [asked, setAsked] = useState(false);
  const button = <AccountButton onClick={() => setAsked(true)} aria-haspopup="menu" />;
  if (!asked) return button;
  return (
    <Suspense fallback={button}>
      <AccountMenu />
    </Suspense>
  );
}

/** Says what is the matter with the page's connection; while it is live there is nothing to see. */
function StatusLine() {
  const status = useStatus();
  const store = useContext(StoreContext);
  useEffect(() => {
    if (status.state === "signed-out") location.assign("/login");
  }, [status.state]);
  const words = {
    loading: () => t("loading"),
    live: () => "",
    reconnecting: () => t("reconnecting", { time: clock(status.since) }),
    "signed-out": () => t("signedOut"),
  }[status.state]();
  const matters = status.state === "reconnecting" || status.state === "signed-out";
  return (
    <footer
      data-state={status.state}
      data-revision={String(store.status.revision)}
      className={matters ? "flex items-center gap-2 bg-warn-soft px-4 py-1.5 font-medium text-warn" : "sr-only"}
    >
      {matters && <WifiOff size={16} aria-hidden="true" />}
      <span role="status">{words}</span>
    </footer>
  );
}

/** Keys of one letter; none while something is typed. Ctrl-K works everywhere. */
function useKeys(show: { help: () => void; palette: () => void }) {
  const navigate = useNavigate();
  const latest = useRef(show);
  latest.current = show;
  useEffect(() => {
    let going = false;
    const pressed = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "k") {
        latest.current.palette();
        event.preventDefault();
        return;
      }
      const target = event.target;
      const typing =
        target instanceof HTMLElement &&
        target.closest(
          "input, textarea, select, [role=dialog], [role=alertdialog], [role=menu], [role=listbox], [contenteditable]",
        );
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const to = going ? GO[event.key] : undefined;
      going = event.key === "g";
      if (to !== undefined) navigate(to);
      else if (event.key === "n") navigate("/sessions/new");
      else if (event.key === "?") latest.current.help();
      else if (event.key === "/") document.querySelector<HTMLInputElement>("main input[type=search]")?.focus();
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [navigate]);
}
