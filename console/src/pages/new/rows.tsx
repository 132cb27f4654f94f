import { Plus, X } from "lucide-react";
import type { ReactNode } from "react";
import { Button, IconButton } from "../../design/button";
import { t } from "../../text/language";

/** Rows of one kind, each of which can be taken away, and a button for another. */
export function Rows<R>({
  rows,
  blank,
  help,
  add,
  onChange,
  children,
}: {
  rows: readonly R[];
  /** What another row begins with. */
  blank: R;
  help: ReactNode;
  /** What the button says. */
  add: string;
  onChange: (rows: R[]) => void;
  /** The fields of a row, and why it is refused. */
  children: (row: R, at: number, change: (part: Partial<R>) => void) => ReactNode;
}) {
  return (
    <div className="flex flex-col gap-2">
      <p className="text-sm text-quiet">{help}</p>
      {rows.map((row, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: rows have no other name
        <div key={at} className="flex items-start gap-2">
          <div className="min-w-0 grow">
            {children(row, at, (part) =>
              onChange(rows.map((one, place) => (place === at ? { ...one, ...part } : one))),
            )}
          </div>
          <IconButton
            label={t("removeRow", { at: at + 1 })}
            onClick={() => onChange(rows.filter((_, place) => place !== at))}
          >
            <X size={16} aria-hidden="true" />
          </IconButton>
        </div>
      ))}
      <div>
        <Button size="small" icon={<Plus size={15} aria-hidden="true" />} onClick={() => onChange([...rows, blank])}>
          {add}
        </Button>
      </div>
    </div>
  );
}
