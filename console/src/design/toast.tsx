import { Toast } from "@base-ui/react/toast";
import { CircleAlert, CircleCheck, X } from "lucide-react";
import { useEffect } from "react";
import { t } from "../text/language";
import { IconButton } from "./button";
import { drawWith, type Notice } from "./notify";

const manager = Toast.createToastManager();

function add({ title, type, description, undo }: Notice): void {
  // There is time to read a problem, and to take back what was done.
  const stays = type === "problem" || undo !== undefined ? { timeout: 15_000 } : {};
  const urgent = type === "problem" ? ({ priority: "high" } as const) : {};
  const id: string = manager.add({
    title,
    type,
    description,
    actionProps: undo && {
      children: undo.label,
      onClick: () => {
        manager.close(id);
        undo.act();
      },
    },
    ...stays,
    ...urgent,
  });
}

/** Where notifications appear. There is one. */
export default function Toasts() {
  // What is added before the provider listens would be lost: it listens once it is drawn.
  useEffect(() => drawWith(add), []);
  return (
    <Toast.Provider toastManager={manager}>
      <Toast.Portal>
        <Toast.Viewport className="fixed right-4 bottom-4 z-50 flex w-[min(24rem,calc(100vw-2rem))] flex-col gap-2">
          <List />
        </Toast.Viewport>
      </Toast.Portal>
    </Toast.Provider>
  );
}

function List() {
  const { toasts } = Toast.useToastManager();
  return toasts.map((toast) => (
    <Toast.Root
      key={toast.id}
      toast={toast}
      className="flex items-start gap-2.5 rounded-lg border border-line bg-card p-3 shadow-pop transition-opacity data-ending-style:opacity-0 data-starting-style:opacity-0"
    >
      {toast.type === "problem" ? (
        <CircleAlert size={18} className="shrink-0 text-bad" aria-hidden="true" />
      ) : (
        <CircleCheck size={18} className="shrink-0 text-good" aria-hidden="true" />
      )}
      <Toast.Content className="min-w-0 grow">
        <Toast.Title className="font-medium" />
        <Toast.Description className="text-sm wrap-anywhere text-quiet" />
        <Toast.Action className="mt-1 font-medium text-accent underline" />
      </Toast.Content>
      <Toast.Close
        render={
          <IconButton label={t("close")} size="small">
            <X size={14} aria-hidden="true" />
          </IconButton>
        }
      />
    </Toast.Root>
  ));
}
