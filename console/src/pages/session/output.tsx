import { useEffect, useRef, useState } from "react";
import { classes } from "../../design/classes";
import type { CodeMediaForm } from "../../gen/retinue/types/v1/code_pb";
import { base64, type Output } from "../../live/cells";
import { pieces } from "../../logs/ansi";
import { classesOf } from "../../logs/colours";
import { t } from "../../text/language";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const TEXT = "overflow-x-auto px-3 py-1.5 whitespace-pre-wrap wrap-anywhere";

/** One output. What is more than text or a picture is shown in a frame that reaches nothing. */
export function Shown({ output }: { output: Output }) {
  if (output.kind === "text") {
    return (
      <pre className={classes(TEXT, output.error && "error text-bad")}>
        {pieces(output.text.replaceAll("\n", "\u2028")).map((piece, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: pieces of a text have no other name
          <span key={index} className={classesOf(piece.look)}>
            {piece.text.replaceAll("\u2028", "\n")}
          </span>
        ))}
      </pre>
    );
  }
  const picture = output.forms.find((form) => PICTURES.has(form.mimeType));
  if (picture !== undefined) {
    return (
      <img
        className="max-w-full bg-white p-1"
        alt={plain(output.forms)}
        src={`data:${picture.mimeType};base64,${base64(picture.data)}`}
      />
    );
  }
  const html = output.forms.find((form) => form.mimeType === "text/html" || form.mimeType === "image/svg+xml");
  if (html !== undefined) return <Frame html={html.text || new TextDecoder().decode(html.data)} />;
  return <pre className={TEXT}>{plain(output.forms)}</pre>;
}

function plain(forms: CodeMediaForm[]): string {
  const form = forms.find((each) => each.mimeType === "text/plain") ?? forms[0];
  return form === undefined ? "" : form.text || new TextDecoder().decode(form.data);
}

function Frame({ html }: { html: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(120);
  useEffect(() => {
    const heard = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow) return;
      const said = event.data as { ready?: boolean; height?: number };
      if (said.ready) frame.current?.contentWindow?.postMessage({ html }, "*");
      if (typeof said.height === "number") setHeight(Math.min(Math.max(said.height, 20), 800));
    };
    window.addEventListener("message", heard);
    return () => window.removeEventListener("message", heard);
  }, [html]);
  return (
    <iframe
      ref={frame}
      className="output w-full border-0 bg-white"
      title={t("code")}
      sandbox="allow-scripts"
      src="/output"
      style={{ height }}
    />
  );
}
