import { Code } from "@connectrpc/connect";
import { ArrowRight } from "lucide-react";
import { type FormEvent, type ReactNode, useId, useState } from "react";
import { type Problem, problemOf } from "../api/problem";
import { Button } from "../design/button";
import { Dialog } from "../design/dialog";
import { t } from "../text/administration";
import { Trouble } from "./basics";
import { type Change, UnreadableField } from "./changes";

/** Says why the value of a field of the request is refused: the whole path, or what is below it. */
export type FieldError = (path: string) => string | undefined;

function refused(error: unknown): Problem {
  if (!(error instanceof UnreadableField)) return problemOf(error);
  const { field, message } = error;
  return { code: Code.InvalidArgument, reason: "", message, fields: [{ field, description: message }] };
}

function under(field: string, path: string): boolean {
  return field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`);
}

/**
 * A form in a dialog. What the server refuses stands beside the field that `children` draw with it; the rest of it
 * below them. With `changes`, it says what would change, and nothing is sent when that is nothing.
 */
export function FormDialog({
  title,
  action,
  changes,
  onSubmit,
  onClose,
  onDone = onClose,
  children,
  wide = false,
}: {
  title: string;
  action: string;
  changes?: readonly Change[];
  onSubmit: () => Promise<unknown>;
  onClose: () => void;
  /** After it was sent and taken; else the dialog closes. */
  onDone?: () => void;
  children: (error: FieldError) => ReactNode;
  wide?: boolean;
}) {
  const id = useId();
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const shown = new Set<string>();
  const error: FieldError = (path) => {
    const of = problem?.fields.filter(({ field }) => under(field, path)) ?? [];
    for (const { field } of of) shown.add(field);
    return of.length > 0 ? of.map(({ description }) => description).join(" ") : undefined;
  };
  const fields = children(error);
  const rest = problem?.fields.filter(({ field }) => !shown.has(field)) ?? [];
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await onSubmit();
      onDone();
    } catch (caught) {
      setProblem(refused(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      wide={wide}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button type="submit" form={id} look="primary" busy={busy} disabled={changes?.length === 0}>
            {action}
          </Button>
        </>
      }
    >
      <form id={id} onSubmit={(event) => void submit(event)} className="flex flex-col gap-4">
        {fields}
        {changes !== undefined && <Changes changes={changes} />}
        {problem !== undefined && (problem.fields.length === 0 || rest.length > 0) && (
          <Trouble problem={{ ...problem, fields: rest }} />
        )}
      </form>
    </Dialog>
  );
}

/** Before and after, line by line. */
export function Changes({ changes }: { changes: readonly Change[] }) {
  return (
    <section aria-label={t("whatChanges")} className="rounded-md bg-sunken px-3 py-2">
      <h3 className="text-sm">{t("whatChanges")}</h3>
      {changes.length === 0 ? (
        <p className="text-sm text-quiet">{t("nothingChanges")}</p>
      ) : (
        <ul className="changes mt-1 flex flex-col gap-1 text-sm">
          {changes.map(({ label, before, after }) => (
            <li key={label} className="flex flex-wrap items-baseline gap-x-2 wrap-anywhere">
              <span className="font-medium">{label}</span>
              <del className="text-quiet">{before || t("notSet")}</del>
              <ArrowRight size={13} aria-hidden="true" className="self-center text-quiet" />
              <ins className="font-medium no-underline">{after || t("notSet")}</ins>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
