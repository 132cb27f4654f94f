import { useContext, useEffect, useRef, useState } from "react";
import { NavLink, Outlet, useLocation, useNavigate } from "react-router";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { clock } from "../text/format";
import { chooseLanguage, type Key, type Language, language, t } from "../text/language";
import { Dialog } from "./basics";
import { CallerContext } from "./caller";
import { StoreContext, useStatus } from "./store";
import { chooseTheme, type Theme, theme } from "./theme";

const PAGES: { path: string; key: Key; admin?: boolean }[] = [
  { path: "/sessions", key: "sessions" },
  { path: "/queue", key: "queue" },
  { path: "/cluster", key: "cluster" },
  { path: "/fairness", key: "fairness" },
  { path: "/endpoints", key: "endpoints" },
  { path: "/templates", key: "templates" },
  { path: "/quotas", key: "quotas" },
  { path: "/groups", key: "groups" },
  { path: "/accounts", key: "accounts" },
  { path: "/audit", key: "audit" },
];
const GO: Record<string, string> = { s: "/sessions", q: "/queue", c: "/cluster", f: "/fairness" };

/** What surrounds all pages: where one can go, and whether what is shown is live. */
export function Shell() {
  const caller = useContext(CallerContext);
  const [help, setHelp] = useState(false);
  const { pathname } = useLocation();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  useKeys(() => setHelp(true));
  // Another page begins at its top, also for who hears it.
  // biome-ignore lint/correctness/useExhaustiveDependencies: on each page
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current?.focus();
  }, [pathname.split("/")[1]]);
  return (
    <>
      <a className="skip" href="#main">
        {t("skip")}
      </a>
      <header>
        <NavLink to="/sessions" className="brand">
          Retinue
        </NavLink>
        <nav aria-label={t("menu")}>
          {PAGES.map(({ path, key }) => (
            <NavLink key={path} to={path}>
              {t(key)}
            </NavLink>
          ))}
        </nav>
        <Settings />
        <span className="caller">
          {caller.name}
          {caller.role === UserRole.ADMIN ? " ★" : ""}
        </span>
        <button type="button" onClick={signOut}>
          {t("signOut")}
        </button>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Outlet />
      </main>
      <StatusLine />
      {help && (
        <Dialog title={t("keys")} onClose={() => setHelp(false)}>
          <p>{t("keyHelp")}</p>
          <form method="dialog">
            <button type="submit">{t("close")}</button>
          </form>
        </Dialog>
      )}
    </>
  );
}

export async function signOut(): Promise<void> {
  await fetch("/logout", { method: "POST" });
  location.assign("/login");
}

function Settings() {
  return (
    <>
      <select
        aria-label="Language"
        defaultValue={language()}
        onChange={(event) => {
          chooseLanguage(event.target.value as Language);
          location.reload();
        }}
      >
        <option value="en">English</option>
        <option value="ko">한국어</option>
      </select>
      <select
        aria-label={t("theme")}
        defaultValue={theme()}
        onChange={(event) => chooseTheme(event.target.value as Theme)}
      >
        <option value="system">{t("system_theme")}</option>
        <option value="light">{t("light")}</option>
        <option value="dark">{t("dark")}</option>
      </select>
    </>
  );
}

function StatusLine() {
  const status = useStatus();
  const store = useContext(StoreContext);
  useEffect(() => {
    if (status.state === "signed-out") location.assign("/login");
  }, [status.state]);
  const words = {
    loading: () => t("loading"),
    live: () => t("live", { revision: status.revision }),
    reconnecting: () => t("reconnecting", { time: clock(status.since) }),
    "signed-out": () => t("signedOut"),
  };
  return (
    <footer data-state={status.state} data-revision={String(store.status.revision)}>
      <span role="status">{status.state === "live" ? "" : words[status.state]()}</span>
      <span aria-hidden={status.state !== "live"}>{status.state === "live" ? words.live() : ""}</span>
    </footer>
  );
}

/** Keys of one letter; none while something is typed. */
function useKeys(showHelp: () => void) {
  const navigate = useNavigate();
  useEffect(() => {
    let going = false;
    const pressed = (event: KeyboardEvent) => {
      const target = event.target;
      const typing =
        target instanceof HTMLElement && target.closest("input, textarea, select, dialog, [contenteditable]");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const to = going ? GO[event.key] : undefined;
      going = event.key === "g";
      if (to !== undefined) navigate(to);
      else if (event.key === "n") navigate("/sessions/new");
      else if (event.key === "?") showHelp();
      else if (event.key === "/") document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [navigate, showHelp]);
}
