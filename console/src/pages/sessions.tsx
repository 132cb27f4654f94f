// biome-ignore-all lint/a11y/useSemanticElements: rows that a script places are not those of a table element
// biome-ignore-all lint/a11y/useFocusableInteractive: headers are read, and what is in them is focused
import { useVirtualizer } from "@tanstack/react-virtual";
import {
  ArrowUpRight,
  CirclePlus,
  Columns3,
  Copy,
  Hand,
  Logs,
  Play,
  SearchX,
  Square,
  SquareTerminal,
  Undo2,
} from "lucide-react";
import { type CSSProperties, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { Button, ButtonLink } from "../design/button";
import { Choice } from "../design/choice";
import { classes } from "../design/classes";
import { SearchField, Tick } from "../design/fields";
import { Menu, MenuAt, MenuCheck, MenuItem, MenuLink, MenuSeparator } from "../design/menu";
import { useNarrow } from "../design/narrow";
import { notify, notifyProblem } from "../design/notify";
import { Page } from "../design/page";
import { SortButton } from "../design/sort";
import { Empty, Skeleton } from "../design/states";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { moved } from "../live/anchor";
import { filterOf, keepColumns, keptColumns } from "../live/kept";
import { hasEnded } from "../live/reduce";
import { type Column, inTab, matching, ordered, TABS, type Tab } from "../live/search";
import { MAX_SESSIONS } from "../live/store";
import { EndDialog } from "../parts/end_dialog";
import { useNow, useSessions, useStatus } from "../parts/store";
import { between } from "../text/format";
import { type Key, t } from "../text/language";
import { BulkBar } from "./sessions/bulk_bar";
import { canWait, setHold } from "./sessions/changes";
import { COLUMNS, KNOWN, layout, USUAL } from "./sessions/columns";
import { FilterMenu } from "./sessions/filter_menu";
import { GRID, HEIGHT, Row, type RowActions, TALL } from "./sessions/row";

const NAMES: Record<Tab, Key> = { all: "all", running: "running", waiting: "waiting", ended: "ended" };
const NONE: readonly never[] = [];
/** Whoever has the focus there uses keys for something else. */
const OTHERS_KEYS = "input, textarea, select, button, a, [role=dialog], [role=alertdialog], [role=menu]";

/** The live list. Search, tab and order are in the address, so that a link shows the same. */
export default function Sessions() {
  const all = useSessions();
  const status = useStatus();
  const live = status.state === "live";
  const now = useNow();
  const narrow = useNarrow();
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
  const [columns, setColumns] = useState(() => keptColumns(KNOWN, USUAL));
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [focusedId, setFocusedId] = useState("");
  const [ending, setEnding] = useState<readonly Session[]>();
  const [menu, setMenu] = useState<{ id: string; anchor: Element }>();
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
  const choose = (query: string) => {
    setText(new URLSearchParams(query).get("q") ?? "");
    setParameters(query, { replace: true });
  };

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
  const height = narrow ? TALL : HEIGHT;
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => height,
    overscan: 8,
    // The head lies over the first row in view; scrolling to a row leaves as much below it.
    scrollPaddingEnd: 2 * height,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: rows have another height
  useEffect(() => virtual.measure(), [height]);
  const view = `${text} ${tab} ${column} ${direction}`;
  useStill(box, rows, height, view);

  const marked = useMemo(() => rows.filter((session) => selected.has(session.id)), [rows, selected]);
  const ids = useMemo(() => rows.map(({ id }) => id), [rows]);
  // Before a row was chosen, keys begin at the first.
  const focused = Math.max(0, ids.indexOf(focusedId));
  const actions = useMemo<RowActions>(
    () => ({
      toggle: (id) =>
        setSelected((before) => {
          const after = new Set(before);
          if (!after.delete(id)) after.add(id);
          return after;
        }),
      focus: setFocusedId,
      openMenu: (id, anchor) => setMenu({ id, anchor }),
    }),
    [],
  );

  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target instanceof HTMLElement && event.target.closest(OTHERS_KEYS)) return;
      const move = (by: number) => {
        const to = Math.max(0, Math.min(focusedId === "" ? 0 : focused + by, rows.length - 1));
        setFocusedId(ids[to] ?? "");
        virtual.scrollToIndex(to);
      };
      const session = rows[focused];
      if (event.key === "j" || event.key === "ArrowDown") move(1);
      else if (event.key === "k" || event.key === "ArrowUp") move(-1);
      else if (event.key === "Enter" && session) navigate(`/sessions/${session.id}`);
      else if (event.key === "t" && session) navigate(`/sessions/${session.id}/terminal`);
      else if (event.key === "l" && session) navigate(`/sessions/${session.id}/logs`);
      else if (event.key === "x" && session) actions.toggle(session.id);
      else if (event.key === "Escape" && selected.size > 0) setSelected(new Set());
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [rows, ids, focused, focusedId, navigate, actions, selected, virtual]);

  const shownColumns = narrow ? NONE : columns;
  const { tracks, width } = layout(columns, narrow);
  const listed = menu && rows.find(({ id }) => id === menu.id);
  return (
    <Page
      title={t("sessions")}
      fill
      wide
      actions={
        <ButtonLink look="primary" to="/sessions/new" icon={<CirclePlus size={16} aria-hidden="true" />}>
          {t("newSession")}
        </ButtonLink>
      }
    >
      {live && all.length === 0 ? (
        <Empty
          icon={<SquareTerminal size={40} aria-hidden="true" />}
          title={t("firstSessionTitle")}
          action={
            <ButtonLink look="primary" to="/sessions/new" className="mt-2">
              {t("firstSession")}
            </ButtonLink>
          }
        >
          {t("firstSessionMeans")}
        </Empty>
      ) : (
        <>
          <div className="flex flex-wrap items-center gap-2">
            <SearchField
              label={t("search")}
              placeholder={t("searchHelp")}
              className="min-w-0 grow basis-44 md:min-w-48 md:basis-72 lg:max-w-lg"
              ref={search}
              value={text}
              onChange={(typed) => {
                setText(typed);
                set("q", typed);
              }}
            />
            <span className="flex min-w-0 max-md:order-last max-md:w-full md:mr-auto">
              <Choice
                label={t("state")}
                options={TABS.map((id) => ({
                  value: id,
                  label: (
                    <>
                      {t(NAMES[id])}{" "}
                      <span className="text-quiet tabular-nums">{counts[id]?.toLocaleString() ?? 0}</span>
                    </>
                  ),
                }))}
                value={tab}
                onChange={(id) => set("tab", id === "all" ? "" : id)}
              />
            </span>
            <FilterMenu current={filterOf(parameters)} onChoose={choose} />
            <span className="max-md:hidden">
              <Menu trigger={<Button icon={<Columns3 size={15} aria-hidden="true" />}>{t("columns")}</Button>}>
                {KNOWN.map((id) => (
                  <MenuCheck
                    key={id}
                    checked={columns.includes(id)}
                    onChange={(checked) => {
                      const chosen = KNOWN.filter((each) => (each === id ? checked : columns.includes(each)));
                      setColumns(chosen);
                      keepColumns(chosen, USUAL);
                    }}
                  >
                    {t(COLUMNS[id].label)}
                  </MenuCheck>
                ))}
                <MenuSeparator />
                <MenuItem
                  icon={<Undo2 size={15} aria-hidden="true" />}
                  onSelect={() => {
                    setColumns(USUAL);
                    keepColumns(USUAL, USUAL);
                  }}
                >
                  {t("usualColumns")}
                </MenuItem>
              </Menu>
            </span>
          </div>
          {all.length >= MAX_SESSIONS && (
            <p className="text-sm text-quiet">{t("mostShown", { count: MAX_SESSIONS })}</p>
          )}
          <div className="relative flex min-h-48 grow basis-0 flex-col">
            {marked.length > 0 && (
              <BulkBar
                sessions={marked}
                live={live}
                onEnd={() => setEnding(marked)}
                onClear={() => setSelected(new Set())}
              />
            )}
            <div
              id="session-list"
              role="table"
              aria-label={t("sessions")}
              aria-rowcount={rows.length + 1}
              className="list min-h-0 overflow-auto rounded-lg border border-line bg-card"
              style={{ "--tracks": tracks, "--least": width } as CSSProperties}
              ref={box}
              // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys
              tabIndex={0}
            >
              <div className="relative min-w-(--least)">
                <div role="rowgroup" className="sticky top-0 z-10 bg-card text-xs font-medium text-quiet">
                  <div role="row" aria-rowindex={1} className={classes(GRID, "h-9 bg-sunken/60")}>
                    <span role="columnheader" className="flex">
                      <Tick
                        label={t("selectAll")}
                        checked={rows.length > 0 && marked.length === rows.length}
                        indeterminate={marked.length > 0 && marked.length < rows.length}
                        onChange={(checked) => setSelected(new Set(checked ? ids : []))}
                      />
                    </span>
                    {[
                      { key: "name", label: "name" as Key, order: "name" as Column, numeric: false },
                      { key: "state", label: "state" as Key, order: "state" as Column, numeric: false },
                      ...shownColumns.map((id) => ({ key: id, ...COLUMNS[id] })),
                    ].map(({ key, label, order, numeric }) => (
                      <span
                        key={key}
                        role="columnheader"
                        className={classes("min-w-0 truncate", numeric && "text-right", key === "why" && "pl-2")}
                        aria-sort={order === column ? (direction === "desc" ? "descending" : "ascending") : undefined}
                      >
                        {order === undefined ? (
                          <span title={t(label)}>{t(label)}</span>
                        ) : (
                          <SortButton
                            label={t(label)}
                            direction={order === column ? (direction === "desc" ? "desc" : "asc") : undefined}
                            onClick={() =>
                              set("sort", `${order}:${order === column && direction !== "desc" ? "desc" : "asc"}`)
                            }
                          />
                        )}
                      </span>
                    ))}
                    <span role="columnheader" aria-label={t("actions")} />
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
                          columns={shownColumns}
                          narrow={narrow}
                          top={item.start}
                          index={item.index}
                          focused={session.id === focusedId}
                          selected={selected.has(session.id)}
                          age={session.createTime ? between(session.createTime, session.endTime, coarse(now)) : ""}
                          actions={actions}
                        />
                      )
                    );
                  })}
                </div>
              </div>
              {rows.length === 0 &&
                (status.state === "loading" ? (
                  <Skeleton lines={6} className="p-4" />
                ) : (
                  <Empty
                    icon={<SearchX size={36} aria-hidden="true" />}
                    title={t("noSessions")}
                    action={
                      <Button className="mt-1" onClick={() => choose("")}>
                        {t("clearFilter")}
                      </Button>
                    }
                  />
                ))}
            </div>
          </div>
        </>
      )}
      {menu && listed && (
        <RowMenu
          session={listed}
          anchor={menu.anchor}
          live={live}
          onEnd={() => setEnding([listed])}
          onClose={() => setMenu(undefined)}
        />
      )}
      {ending && <EndDialog sessions={ending} onClose={() => setEnding(undefined)} />}
    </Page>
  );
}

/** Ages change rarely, so that rows are not drawn again each second. */
function coarse(now: number): number {
  return Math.floor(now / 5000) * 5000;
}

/** Keeps what is in view where it is when rows come and go above it; another view begins at its top. */
function useStill(
  box: React.RefObject<HTMLElement | null>,
  rows: readonly Session[],
  height: number,
  view: string,
): void {
  const before = useRef({ rows, view });
  useLayoutEffect(() => {
    const last = before.current;
    before.current = { rows, view };
    const element = box.current;
    if (element === null) return;
    if (last.view !== view) element.scrollTop = 0;
    else if (last.rows !== rows && element.scrollTop > 0) {
      const first = Math.floor(element.scrollTop / height);
      element.scrollTop += height * moved(last.rows, rows, first, first + Math.ceil(element.clientHeight / height));
    }
  }, [box, rows, height, view]);
}

function RowMenu({
  session,
  anchor,
  live,
  onEnd,
  onClose,
}: {
  session: Session;
  anchor: Element;
  live: boolean;
  onEnd: () => void;
  onClose: () => void;
}) {
  const name = session.spec?.name || session.id;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(session.id);
      notify(t("idCopied", { name }));
    } catch (error) {
      notifyProblem(t("copyId"), error);
    }
  };
  return (
    <MenuAt anchor={anchor} label={t("rowActions", { name })} onClose={onClose}>
      <MenuLink to={`/sessions/${session.id}`} icon={<ArrowUpRight size={15} aria-hidden="true" />}>
        {t("open")}
      </MenuLink>
      {!hasEnded(session) && (
        <MenuLink to={`/sessions/${session.id}/terminal`} icon={<SquareTerminal size={15} aria-hidden="true" />}>
          {t("terminal")}
        </MenuLink>
      )}
      <MenuLink to={`/sessions/${session.id}/logs`} icon={<Logs size={15} aria-hidden="true" />}>
        {t("logs")}
      </MenuLink>
      <MenuItem icon={<Copy size={15} aria-hidden="true" />} onSelect={() => void copy()}>
        {t("copyId")}
      </MenuItem>
      {canWait(session) && (
        <MenuItem
          disabled={!live}
          icon={session.spec?.hold ? <Play size={15} aria-hidden="true" /> : <Hand size={15} aria-hidden="true" />}
          onSelect={() => void setHold([session], !session.spec?.hold)}
        >
          {t(session.spec?.hold ? "release" : "hold")}
        </MenuItem>
      )}
      <MenuSeparator />
      <MenuItem
        danger
        disabled={!live || hasEnded(session)}
        icon={<Square size={15} aria-hidden="true" />}
        onSelect={onEnd}
      >
        {t("end")}…
      </MenuItem>
    </MenuAt>
  );
}
