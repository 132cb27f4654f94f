import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { kernels } from "./api/kernels";
import { problemOf } from "./api/problem";
import type { AttachRequestSchema } from "./gen/retinue/manager/v1/kernel_service_pb";
import type { CommandInputSchema } from "./gen/retinue/types/v1/terminal_pb";
import { Outbox } from "./parts/outbox";
import { onReaderChosen, readsScreen } from "./parts/screen_reader";
import { onDark } from "./parts/theme";
import "./terminal.css";
import { markDocument, t } from "./text/language";

const DARK = { background: "#16181d", foreground: "#e6e6e6" };
const LIGHT = { background: "#ffffff", foreground: "#1b1d22", cursor: "#1b1d22", selectionBackground: "#b4d5fe" };
/** While so much is not drawn, no more is read: the kernel waits, and Ctrl-C is heard. */
const MAX_UNDRAWN = 256 << 10;
type Step = MessageInitShape<typeof AttachRequestSchema>["step"];
const input = (step: MessageInitShape<typeof CommandInputSchema>["step"]): Step => ({ case: "input", value: { step } });

const [, , session = "", kernel = ""] = location.pathname.split("/").map(decodeURIComponent);
/** Kept while a shell runs, by this window: what finds it has been loaded again. */
const OPEN = `shell ${location.pathname}${location.search}`;
const place = document.getElementById("terminal");
const status = document.getElementById("status");

/** Leaves the terminal by keys: back to the tab that it is in. */
function leave(terminal: Terminal): void {
  terminal.blur();
  window.parent.document.querySelector<HTMLElement>("[role=tab][aria-selected=true]")?.focus();
}

/**
 * Takes text that comes without a key (emoji panels, dictation, keyboards of phones): for screen readers, xterm.js leaves
 * it where it is typed.
 */
function takeInsertions(terminal: Terminal): void {
  let pressed = false;
  const typed = terminal.textarea;
  typed?.addEventListener("keydown", () => {
    pressed = true;
  });
  typed?.addEventListener("keyup", () => {
    pressed = false;
  });
  typed?.addEventListener("input", (event) => {
    const { data, inputType, isComposing } = event as InputEvent;
    if (!terminal.options.screenReaderMode || pressed || isComposing) return;
    if (inputType === "insertText" && data) terminal.input(data);
  });
}

function main(place: HTMLElement): void {
  const terminal = new Terminal({
    screenReaderMode: readsScreen(),
    scrollback: 10_000,
    fontSize: 14,
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono", monospace',
    // A row cuts off what is lower than it: at the height of the letters alone, that is the underscore of many fonts.
    lineHeight: 1.2,
    // Links and the clipboard are the page's: output neither opens nor writes anything.
    linkHandler: null,
  });
  onDark((dark) => {
    terminal.options.theme = dark ? DARK : LIGHT;
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.parser.registerOscHandler(52, () => true);
  terminal.open(place);
  fit.fit();
  new ResizeObserver(() => fit.fit()).observe(place);
  // In a session's page, who moves along its tabs by keys is not to be caught here.
  if (window.top === window || document.hasFocus()) terminal.focus();
  window.addEventListener("focus", () => terminal.focus());
  onReaderChosen((on) => {
    terminal.options.screenReaderMode = on;
  });
  takeInsertions(terminal);
  terminal.attachCustomKeyEventHandler((event) => {
    const leaves = event.ctrlKey && event.shiftKey && event.key === "Escape";
    if (leaves) leave(terminal);
    return !leaves;
  });
  document.title = `${kernel} · ${t("terminal")} · Retinue`;
  Object.assign(window, { terminal });

  let steps: Outbox<Step> | undefined;
  const say = (words: string) => {
    if (status !== null) status.textContent = words;
  };
  const size = () => ({ rows: terminal.rows, columns: terminal.cols });
  terminal.onData((data) => {
    if (steps !== undefined) steps.put(input({ case: "stdin", value: new TextEncoder().encode(data) }));
    else if (data === "\r") void shell();
  });
  terminal.onBinary((data) =>
    steps?.put(input({ case: "stdin", value: Uint8Array.from(data, (c) => c.charCodeAt(0)) })),
  );
  terminal.onResize(() => steps?.put(input({ case: "resize", value: size() })));
  window.addEventListener("beforeunload", (event) => {
    // The shell ends with this page.
    if (steps !== undefined && window.top === window) event.preventDefault();
  });

  async function shell(): Promise<void> {
    const own = new Outbox<Step>();
    steps = own;
    const spec = { terminal: size(), keepProcesses: true };
    own.put({ case: "start", value: { session, hostname: kernel, spec } });
    say(t("loading"));
    let undrawn = 0;
    let drawn = () => {};
    try {
      for await (const { output } of kernels.attach(own.steps())) {
        const step = output?.step;
        if (step?.case === "started") {
          sessionStorage.setItem(OPEN, "");
          say(`${kernel || "main1"} · ${t("connected")}`);
        }
        if (step?.case === "stdout" || step?.case === "stderr") {
          const length = step.value.byteLength;
          undrawn += length;
          terminal.write(step.value, () => {
            undrawn -= length;
            drawn();
          });
          while (undrawn > MAX_UNDRAWN) {
            await new Promise<void>((resolve) => {
              drawn = resolve;
            });
          }
        }
        if (step?.case === "exited") {
          // The call may take a while to end: what is typed from now on is for the next shell.
          if (steps === own) steps = undefined;
          document.documentElement.dataset.exited = String(step.value.exitCode);
          terminal.write(`\r\n[${t("shellEnded", { code: step.value.exitCode })} ${t("newShell")}]\r\n`);
          say(t("shellEnded", { code: step.value.exitCode }));
        }
      }
    } catch (error) {
      const problem = problemOf(error);
      const words = t("shellBroke", { reason: problem.reason || problem.message });
      terminal.write(`\r\n[${words} ${t("newShell")}]\r\n`);
      say(words);
    } finally {
      own.close();
      if (steps === own) steps = undefined;
      if (steps === undefined) sessionStorage.removeItem(OPEN);
    }
  }
  if (sessionStorage.getItem(OPEN) !== null) terminal.write(`[${t("shellLeft")}]\r\n`);
  void shell();
}

markDocument();
if (place !== null) main(place);
