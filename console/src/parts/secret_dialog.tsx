import type { ReactNode } from "react";
import { Button } from "../design/button";
import { CopyButton } from "../design/copy";
import { Dialog } from "../design/dialog";
import { t } from "../text/administration";

/** A secret, the only time that it can be read. */
export function SecretDialog({
  title,
  secret,
  onClose,
  children,
}: {
  title: string;
  secret: string;
  onClose: () => void;
  children?: ReactNode;
}) {
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <Button look="primary" onClick={onClose}>
          {t("iHaveIt")}
        </Button>
      }
    >
      <p>{t("secretOnce")}</p>
      <div className="flex items-start gap-2 rounded-md bg-sunken p-3">
        <pre className="secret min-w-0 grow whitespace-pre-wrap wrap-anywhere">{secret}</pre>
        <CopyButton text={secret} />
      </div>
      {children}
    </Dialog>
  );
}
