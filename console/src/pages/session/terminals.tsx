import { Columns2, ExternalLink, Plus, Square, SquareTerminal, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import { Button, buttonClasses, IconButton } from "../../design/button";
import { classes } from "../../design/classes";
import { Checkbox } from "../../design/fields";
import { Menu, MenuItem } from "../../design/menu";
import { Empty } from "../../design/states";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { chooseReader, readsScreen } from "../../parts/screen_reader";
import {
  closeTerminals,
  MAX_TERMINALS,
  type OpenTerminal,
  openTerminal,
  showAt,
  useTerminals,
} from "../../parts/terminals";
import { t } from "../../text/language";

/** What is seen of the terminals of each session, one or two: kept while the console is open, as the shells are. */
const seen = new Map<string, readonly string[]>();

/** Shells in the kernels of a session. They stay while other pages are looked at, until they are closed. */
export default function Terminals({ session }: { session: Session }) {
  const running = session.state === SessionState.RUNNING;
  const { id } = session;
  useEffect(() => {
    if (!running) closeTerminals((each) => each.session === id);
  }, [running, id]);
  if (!running) {
    return (
      <Empty icon={<SquareTerminal size={32} aria-hidden="true" />} title={t("terminalNeedsRunning")}>
        {session.message}
      </Empty>
    );
  }
  return <Running key={id} session={session} />;
}

function Running({ session }: { session: Session }) {
  const all = useTerminals();
  const mine = all.filter((each) => each.session === session.id);
  const [parameters, setParameters] = useSearchParams();
  const [panes, setPanes] = useState(() => seen.get(session.id) ?? []);
  const [active, setActive] = useState(0);
  const [reads, setReads] = useState(readsScreen);
  const asked = parameters.get("kernel");
  // What was closed leaves its pane to another.
  const paths = panes.filter((path) => mine.some((each) => each.path === path));
  const shown = paths.length > 0 ? paths : mine.slice(0, 1).map(({ path }) => path);
  const current = shown[Math.min(active, shown.length - 1)];
  const show = (paths: readonly string[]) => {
    seen.set(session.id, paths);
    setPanes(paths);
  };
  const put = (path: string) => {
    const at = shown.indexOf(path);
    if (at >= 0) setActive(at);
    else show(shown.length < 2 ? [path] : shown.map((each) => (each === current ? path : each)));
  };
  const add = (kernel: string) => put(openTerminal(session.id, kernel).path);
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for what the address asks for
  useEffect(() => {
    const kernel = asked ?? "main1";
    const own = mine.filter((each) => each.kernel === kernel);
    if (asked === null && mine.length > 0) return;
    const terminal = own.find(({ path }) => shown.includes(path)) ?? own[0] ?? openTerminal(session.id, kernel);
    put(terminal.path);
    if (asked !== null) setParameters({}, { replace: true });
  }, [asked]);
  const split = () => {
    if (shown.length > 1) {
      if (current !== undefined) show([current]);
      setActive(0);
      return;
    }
    const kernel = mine.find(({ path }) => path === current)?.kernel ?? "main1";
    const other = mine.find(({ path }) => path !== current) ?? openTerminal(session.id, kernel);
    show([...shown, other.path]);
    setActive(1);
  };
  const full = all.length >= MAX_TERMINALS;
  const alone = session.kernels.length === 1;
  const plus = (
    <IconButton
      label={full ? t("terminalsFull", { count: MAX_TERMINALS }) : t("newTerminal")}
      size="small"
      disabled={full}
      {...(alone && { onClick: () => add("main1") })}
    >
      <Plus size={16} aria-hidden="true" />
    </IconButton>
  );
  return (
    <div className="flex min-h-96 grow flex-col overflow-hidden rounded-lg border border-line bg-card">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1.5 border-b border-line px-2 py-1.5">
        <ul className="flex min-w-0 flex-wrap items-center gap-1" aria-label={t("terminals")}>
          {mine.map((terminal) => (
            <li
              key={terminal.path}
              className={classes(
                "inline-flex items-center rounded-md",
                terminal.path === current ? "bg-accent-soft" : shown.includes(terminal.path) && "bg-sunken",
              )}
            >
              <Button
                look="quiet"
                size="small"
                aria-pressed={terminal.path === current}
                icon={<SquareTerminal size={14} aria-hidden="true" className="text-quiet" />}
                onClick={() => put(terminal.path)}
              >
                {nameOf(terminal)}
              </Button>
              <IconButton
                label={t("closeTerminal", { name: nameOf(terminal) })}
                size="small"
                onClick={() => closeTerminals((each) => each.path === terminal.path)}
              >
                <X size={13} aria-hidden="true" />
              </IconButton>
            </li>
          ))}
          <li>
            {alone || full ? (
              plus
            ) : (
              <Menu trigger={plus} align="start">
                {session.kernels.slice(0, 64).map(({ hostname, agent }) => (
                  <MenuItem key={hostname} onSelect={() => add(hostname)}>
                    {hostname} <small className="ml-auto pl-4">{agent}</small>
                  </MenuItem>
                ))}
              </Menu>
            )}
          </li>
        </ul>
        <span className="ml-auto inline-flex flex-wrap items-center gap-2">
          <Checkbox
            label={t("screenReader")}
            checked={reads}
            onChange={(on) => {
              chooseReader(on);
              setReads(on);
            }}
          />
          <IconButton
            label={t(shown.length > 1 ? "unsplit" : "split")}
            size="small"
            aria-pressed={shown.length > 1}
            onClick={split}
            disabled={mine.length === 0 || (full && mine.length < 2)}
          >
            {shown.length > 1 ? <Square size={15} aria-hidden="true" /> : <Columns2 size={15} aria-hidden="true" />}
          </IconButton>
          {current !== undefined && (
            <a
              className={buttonClasses({ look: "quiet", size: "small" })}
              href={current}
              target="_blank"
              rel="noopener"
              title={t("popOut")}
            >
              <ExternalLink size={15} aria-hidden="true" />
              <span className="max-sm:sr-only">{t("popOut")}</span>
            </a>
          )}
        </span>
      </div>
      {mine.length === 0 ? (
        <Empty
          title={t("noTerminals")}
          action={
            <Button look="primary" onClick={() => add("main1")}>
              {t("newTerminal")}
            </Button>
          }
        />
      ) : (
        <div
          className={classes(
            "grid min-h-0 grow gap-1 p-1",
            shown.length > 1 && "grid-rows-2 md:grid-cols-2 md:grid-rows-1",
          )}
        >
          {shown.map((path, at) => (
            <Pane key={path} path={path} active={shown.length > 1 && at === active} onEnter={() => setActive(at)} />
          ))}
        </div>
      )}
    </div>
  );
}

function nameOf({ kernel, number }: OpenTerminal): string {
  return number > 1 ? `${kernel} (${number})` : kernel;
}

/** The place of a terminal, which lies over it. */
function Pane({ path, active, onEnter }: { path: string; active: boolean; onEnter: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(onEnter);
  latest.current = onEnter;
  useEffect(() => (box.current === null ? undefined : showAt(path, box.current)), [path]);
  // A frame tells nobody that it is clicked; that the focus went there is seen from here.
  useEffect(() => {
    const left = () => {
      const focused = document.activeElement;
      if (focused instanceof HTMLIFrameElement && focused.getAttribute("src") === path) latest.current();
    };
    window.addEventListener("blur", left);
    return () => window.removeEventListener("blur", left);
  }, [path]);
  return (
    <div
      className={classes(
        "flex min-h-0 min-w-0 rounded-md border p-0.5",
        active ? "border-accent" : "border-transparent",
      )}
    >
      <div ref={box} className="min-h-0 min-w-0 grow" />
    </div>
  );
}
