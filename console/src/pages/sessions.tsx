// biome-ignore-all lint/a11y/useSemanticElements: rows that a script places are not those of a table element
// biome-ignore-all lint/a11y/useFocusableInteractive: headers and rows are read, and what is in them is focused
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useNavigate, useSearchParams } from "react-router";
import { sessions as api } from "../api/client";
import { type Problem, problemOf, problemOfStatus } from "../api/problem";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { hasEnded } from "../live/reduce";
import { type Column, inTab, matching, ordered, TABS, type Tab } from "../live/search";
import { agentsOf, asked, clusterTag, pulled, shownState } from "../live/state";
import { MAX_SESSIONS } from "../live/store";
import { ConditionMark, Dialog, StateMark, Tabs, Trouble } from "../parts/basics";
import { useNow, useSessions, useStatus } from "../parts/store";
import { amounts, between } from "../text/format";
import { type Key, t } from "../text/language";

const ROW = 36;
const COLUMNS: { key: Key; column?: Column }[] = [
  { key: "name", column: "name" },
  { key: "state", column: "state" },
  { key: "where" },
  { key: "use" },
  { key: "owner", column: "owner" },
  { key: "age", column: "age" },
  { key: "why" },
];

/** The live list. Search, tab and order are in the address, so that a link shows the same. */
export function Sessions() {
  const all = useSessions();
  const status = useStatus();
  const now = useNow();
  const navigate = useNavigate();
  const [parameters, setParameters] = useSearchParams();
  const inAddress = parameters.get("q") ?? "";
  // The address follows what is typed, and not at once.
  const [text, setText] = useState(inAddress);
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (document.activeElement !== search.current) setText(inAddress);
  }, [inAddress]);
  const tab = TABS.find((known) => known === parameters.get("tab")) ?? "all";
  const [column, direction] = (parameters.get("sort") ?? "age:asc").split(":") as [Column, string?];
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [focused, setFocused] = useState(0);
  const [ending, setEnding] = useState(false);
  const set = useCallback(
    (name: string, value: string) =>
      setParameters(
        (before) => {
          const after = new URLSearchParams(before);
          if (value === "") after.delete(name);
          else after.set(name, value);
          return after;
        },
        { replace: true },
      ),
    [setParameters],
  );

  const rows = useMemo(() => {
    const matches = matching(text);
    return ordered(
      all.filter((session) => inTab(session, tab) && matches(session)),
      column,
      direction === "desc",
    );
  }, [all, text, tab, column, direction]);
  const counts = useMemo(
    () => Object.fromEntries(TABS.map((each) => [each, all.filter((session) => inTab(session, each)).length])),
    [all],
  );
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW,
    overscan: 8,
  });
  const toggle = useCallback(
    (id: string) =>
      setSelected((before) => {
        const after = new Set(before);
        if (!after.delete(id)) after.add(id);
        return after;
      }),
    [],
  );
  const marked = rows.filter((session) => selected.has(session.id) && !hasEnded(session));

  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.target instanceof HTMLElement && event.target.closest("input, textarea, select, dialog, button, a"))
        return;
      const session = rows[focused];
      if (event.key === "j" || event.key === "ArrowDown") setFocused((at) => Math.min(at + 1, rows.length - 1));
      else if (event.key === "k" || event.key === "ArrowUp") setFocused((at) => Math.max(at - 1, 0));
      else if (event.key === "Enter" && session) navigate(`/sessions/${session.id}`);
      else if (event.key === "t" && session) navigate(`/sessions/${session.id}/terminal`);
      else if (event.key === "l" && session) navigate(`/sessions/${session.id}/logs`);
      else if (event.key === "x" && session) toggle(session.id);
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [rows, focused, navigate, toggle]);
  useEffect(() => {
    if (focused < rows.length) virtual.scrollToIndex(focused);
  }, [focused, rows.length, virtual]);

  const names: Record<Tab, Key> = { all: "all", running: "running", waiting: "waiting", ended: "ended" };
  return (
    <>
      <div className="bar-top">
        <h1>{t("sessions")}</h1>
        <Link className="button primary" to="/sessions/new">
          {t("newSession")}
        </Link>
      </div>
      <div className="toolbar">
        <input
          type="search"
          aria-label={t("search")}
          placeholder={t("searchHelp")}
          ref={search}
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            set("q", event.target.value);
          }}
        />
        <Tabs
          label={t("state")}
          panel="session-list"
          items={TABS.map((id) => ({ id, label: `${t(names[id])} ${counts[id]?.toLocaleString() ?? 0}` }))}
          selected={tab}
          onSelect={(id) => set("tab", id === "all" ? "" : id)}
        />
        <span className="grow" />
        <span role="status">{t("selected", { count: marked.length })}</span>
        <button type="button" disabled={marked.length === 0 || status.state !== "live"} onClick={() => setEnding(true)}>
          {t("end")}…
        </button>
      </div>
      {all.length >= MAX_SESSIONS && <p className="note">{t("mostShown", { count: MAX_SESSIONS })}</p>}
      <div
        id="session-list"
        role="table"
        aria-label={t("sessions")}
        aria-rowcount={rows.length + 1}
        className="list"
        ref={box}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
        tabIndex={0}
      >
        <div role="rowgroup" className="list-head">
          <div role="row" aria-rowindex={1}>
            <span role="columnheader" className="check" aria-label={t("selected", { count: marked.length })} />
            {COLUMNS.map(({ key, column: own }) => (
              <span
                key={key}
                role="columnheader"
                aria-sort={own === column ? (direction === "desc" ? "descending" : "ascending") : undefined}
              >
                {own === undefined ? (
                  t(key)
                ) : (
                  <button
                    type="button"
                    className="plain"
                    onClick={() => set("sort", `${own}:${own === column && direction !== "desc" ? "desc" : "asc"}`)}
                  >
                    {t(key)}
                    <span aria-hidden="true">{own === column ? (direction === "desc" ? " ↓" : " ↑") : ""}</span>
                  </button>
                )}
              </span>
            ))}
          </div>
        </div>
        <div role="rowgroup" style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => {
            const session = rows[item.index];
            return (
              session && (
                <Row
                  key={session.id}
                  session={session}
                  top={item.start}
                  index={item.index}
                  focused={item.index === focused}
                  selected={selected.has(session.id)}
                  age={session.createTime ? between(session.createTime, session.endTime, coarse(now)) : ""}
                  onToggle={toggle}
                />
              )
            );
          })}
        </div>
      </div>
      {rows.length === 0 && <p className="note">{t(status.state === "loading" ? "loading" : "noSessions")}</p>}
      {ending && <EndDialog sessions={marked} onClose={() => setEnding(false)} />}
    </>
  );
}

/** Ages change rarely, so that rows are not drawn again each second. */
function coarse(now: number): number {
  return Math.floor(now / 5000) * 5000;
}

const Row = memo(function Row(props: {
  session: Session;
  top: number;
  index: number;
  focused: boolean;
  selected: boolean;
  age: string;
  onToggle: (id: string) => void;
}) {
  const { session } = props;
  const name = session.spec?.name ?? session.id;
  const fetched = pulled(session);
  return (
    <div
      role="row"
      aria-rowindex={props.index + 2}
      className={props.focused ? "row focused" : "row"}
      data-session={session.id}
      style={{ transform: `translateY(${props.top}px)` }}
    >
      <span role="cell" className="check">
        <input type="checkbox" aria-label={name} checked={props.selected} onChange={() => props.onToggle(session.id)} />
      </span>
      <span role="cell">
        <Link to={`/sessions/${session.id}`} title={name}>
          {name}
        </Link>
      </span>
      <span role="cell">
        <StateMark shown={shownState(session)} />
        <ConditionMark conditions={session.conditions} />
      </span>
      <span role="cell">
        <span className="tag">{clusterTag(session)}</span> {agentsOf(session).join(" ")}
      </span>
      <span role="cell">{amounts(asked(session))}</span>
      <span role="cell">{session.owner}</span>
      <span role="cell">{props.age}</span>
      <span role="cell" title={session.message}>
        {fetched === undefined ? session.reason : t("pulling", { percent: fetched })}
      </span>
    </div>
  );
});

/** Asks, and ends the sessions; those that are refused stay, with the reason. */
export function EndDialog({ sessions, onClose }: { sessions: readonly Session[]; onClose: () => void }) {
  const [busy, setBusy] = useState(false);
  const [problems, setProblems] = useState<{ name: string; problem: Problem }[]>([]);
  const end = async (force: boolean) => {
    setBusy(true);
    const refused: { name: string; problem: Problem }[] = [];
    try {
      const { results } = await api.batchTerminateSessions({ sessions: sessions.map(({ id }) => id), force });
      for (const [at, { outcome }] of results.entries())
        if (outcome.case === "refused")
          refused.push({ name: sessions[at]?.spec?.name ?? "", problem: problemOfStatus(outcome.value) });
    } catch (error) {
      refused.push({ name: t("sessions"), problem: problemOf(error) });
    }
    setBusy(false);
    setProblems(refused);
    if (refused.length === 0) onClose();
  };
  return (
    <Dialog title={t("end")} onClose={onClose}>
      <p>{t("endQuestion", { count: sessions.length })}</p>
      {problems.map(({ name, problem }) => (
        <div key={name}>
          <strong>{name}</strong>
          <Trouble problem={problem} />
        </div>
      ))}
      <div className="actions">
        <button type="button" onClick={onClose}>
          {t("cancel")}
        </button>
        <button type="button" disabled={busy} onClick={() => void end(true)}>
          {t("endNow")}
        </button>
        <button type="button" className="primary" disabled={busy} onClick={() => void end(false)}>
          {t("end")}
        </button>
      </div>
    </Dialog>
  );
}
