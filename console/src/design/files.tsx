import { type ReactNode, useRef, useState } from "react";
import { Button, type Look } from "./button";
import { classes } from "./classes";

/** A button that asks for files of this machine. */
export function FileButton({
  label,
  icon,
  look,
  accept,
  multiple = false,
  disabled = false,
  onFiles,
}: {
  label: string;
  icon?: ReactNode;
  look?: Look;
  accept?: string;
  multiple?: boolean;
  disabled?: boolean;
  onFiles: (files: File[]) => void;
}) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <Button look={look} icon={icon} disabled={disabled} onClick={() => input.current?.click()}>
        {label}
      </Button>
      <input
        ref={input}
        type="file"
        hidden
        multiple={multiple}
        accept={accept}
        onChange={(event) => {
          const files = [...(event.target.files ?? [])];
          // The same file can be chosen again.
          event.target.value = "";
          if (files.length > 0) onFiles(files);
        }}
      />
    </>
  );
}

/** A part of a page onto which files can be dropped; `words` lie over it meanwhile. */
export function DropZone({
  words,
  onFiles,
  disabled = false,
  children,
}: {
  words: string;
  onFiles: (files: File[]) => void;
  disabled?: boolean;
  children: ReactNode;
}) {
  const [over, setOver] = useState(false);
  // Each element within is entered and left by itself.
  const depth = useRef(0);
  const holds = (event: React.DragEvent) => !disabled && event.dataTransfer.types.includes("Files");
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: the button beside it does the same by keys
    <div
      className="relative min-w-0"
      onDragEnter={(event) => {
        if (!holds(event)) return;
        event.preventDefault();
        depth.current += 1;
        setOver(true);
      }}
      onDragOver={(event) => {
        if (holds(event)) event.preventDefault();
      }}
      onDragLeave={(event) => {
        if (!holds(event)) return;
        depth.current -= 1;
        if (depth.current <= 0) setOver(false);
      }}
      onDrop={(event) => {
        depth.current = 0;
        setOver(false);
        if (!holds(event)) return;
        event.preventDefault();
        const files = [...event.dataTransfer.files];
        if (files.length > 0) onFiles(files);
      }}
    >
      {children}
      <div
        aria-hidden={!over}
        className={classes(
          "pointer-events-none absolute inset-1 items-center justify-center rounded-lg border-2 border-dashed border-accent bg-accent-soft/90 font-semibold text-accent",
          over ? "flex" : "hidden",
        )}
      >
        {words}
      </div>
    </div>
  );
}
