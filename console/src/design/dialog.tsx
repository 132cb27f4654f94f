import { AlertDialog } from "@base-ui/react/alert-dialog";
import { Dialog as Base } from "@base-ui/react/dialog";
import { X } from "lucide-react";
import { type ReactNode, useState } from "react";
import type { Problem } from "../api/problem";
import { problemOf } from "../api/problem";
import { Trouble } from "../parts/basics";
import { t } from "../text/language";
import { Button, IconButton } from "./button";
import { classes } from "./classes";

const VEIL = "fixed inset-0 z-40 bg-veil transition-opacity data-ending-style:opacity-0 data-starting-style:opacity-0";
const BOX =
  "fixed top-1/2 left-1/2 z-40 flex max-h-[calc(100dvh-2rem)] w-[calc(100vw-2rem)] -translate-x-1/2 -translate-y-1/2 flex-col " +
  "rounded-lg border border-line bg-card text-ink shadow-pop outline-none";

/** The first line of a dialog: its title, and the button that closes it. */
function Heading({ title }: { title: string }) {
  return (
    <div className="flex items-center gap-2 border-b border-line px-4 py-2.5">
      <Base.Title className="grow">{title}</Base.Title>
      <Base.Close
        render={
          <IconButton label={t("close")} size="small">
            <X size={16} aria-hidden="true" />
          </IconButton>
        }
      />
    </div>
  );
}

/** A modal dialog; Escape closes it, and focus returns to where it was. It is open as long as it is drawn. */
export function Dialog({
  title,
  onClose,
  children,
  actions,
  wide = false,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** Buttons of the last line; the one that does it is the last. */
  actions?: ReactNode;
  wide?: boolean;
}) {
  return (
    <Base.Root open onOpenChange={(open) => !open && onClose()}>
      <Base.Portal>
        <Base.Backdrop className={VEIL} />
        <Base.Popup className={classes(BOX, wide ? "max-w-4xl" : "max-w-xl")}>
          <Heading title={title} />
          <div className="flex flex-col gap-3 overflow-auto p-4">{children}</div>
          {actions !== undefined && (
            <div className="flex flex-wrap justify-end gap-2 border-t border-line px-4 py-3">{actions}</div>
          )}
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}

/**
 * Asks before something is done that cannot be taken back. `children` name what ends or changes.
 * It stays open with the server's words when that was refused.
 */
export function ConfirmDialog({
  title,
  action,
  children,
  onConfirm,
  onClose,
}: {
  title: string;
  /** What the button says: the verb, not "OK". */
  action: string;
  children: ReactNode;
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
}) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
      onClose();
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };
  return (
    <AlertDialog.Root open onOpenChange={(open) => !open && onClose()}>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className={VEIL} />
        <AlertDialog.Popup className={classes(BOX, "max-w-lg")}>
          <AlertDialog.Title className="px-4 pt-4">{title}</AlertDialog.Title>
          <div className="flex flex-col gap-3 overflow-auto p-4">
            {children}
            <Trouble problem={problem} />
          </div>
          <div className="flex flex-wrap justify-end gap-2 border-t border-line px-4 py-3">
            <Button onClick={onClose}>{t("cancel")}</Button>
            <Button look="danger" busy={busy} onClick={() => void confirm()}>
              {action}
            </Button>
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}

/** A dialog at an edge of the window: the navigation of a telephone, the details of a row. */
export function Sheet({
  title,
  side = "right",
  onClose,
  children,
}: {
  title: string;
  side?: "left" | "right";
  onClose: () => void;
  children: ReactNode;
}) {
  return (
    <Base.Root open onOpenChange={(open) => !open && onClose()}>
      <Base.Portal>
        <Base.Backdrop className={VEIL} />
        <Base.Popup
          className={classes(
            "fixed inset-y-0 z-40 flex w-[min(30rem,calc(100vw-3rem))] flex-col bg-card text-ink shadow-pop outline-none",
            side === "left" ? "left-0 border-r border-line" : "right-0 border-l border-line",
          )}
        >
          <Heading title={title} />
          <div className="flex grow flex-col gap-3 overflow-auto p-4">{children}</div>
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}
