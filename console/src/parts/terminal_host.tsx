import { useLayoutEffect, useRef } from "react";
import { t } from "../text/language";
import { type OpenTerminal, usePlace, useTerminals } from "./terminals";

/**
 * All open terminals, beside the pages and not in them: a frame that leaves the document loses its shell. Each lies over
 * the place that the page shown has for it, or waits unseen with the size that it had.
 */
export default function TerminalHost() {
  return useTerminals().map((terminal) => <TerminalFrame key={terminal.path} terminal={terminal} />);
}

function TerminalFrame({ terminal }: { terminal: OpenTerminal }) {
  const place = usePlace(terminal.path);
  const frame = useRef<HTMLIFrameElement>(null);
  useLayoutEffect(() => {
    const shown = frame.current;
    const page = shown?.parentElement;
    if (place === undefined || shown === null || !page) return;
    const lay = () => {
      const at = place.getBoundingClientRect();
      const within = page.getBoundingClientRect();
      shown.style.left = `${at.left - within.left + page.scrollLeft}px`;
      shown.style.top = `${at.top - within.top + page.scrollTop}px`;
      shown.style.width = `${at.width}px`;
      shown.style.height = `${at.height}px`;
    };
    lay();
    // What moves the place changes the size of it, or of what it is in.
    const watch = new ResizeObserver(lay);
    for (let each: HTMLElement | null = place; each !== null && each !== page; each = each.parentElement)
      watch.observe(each);
    watch.observe(page);
    // Whoever opens a terminal types in it next; who moves along the tabs of a page by keys is not to be caught.
    if (!document.activeElement?.matches("[role=tab]:focus-visible")) shown.focus();
    return () => watch.disconnect();
  }, [place]);
  return (
    <iframe
      ref={frame}
      className={`terminal rounded-md border-0 ${place === undefined ? "invisible fixed top-0 left-0" : "absolute"}`}
      title={`${t("terminal")} ${terminal.kernel}${terminal.number > 1 ? ` (${terminal.number})` : ""}`}
      src={terminal.path}
      allow="clipboard-read; clipboard-write"
    />
  );
}
