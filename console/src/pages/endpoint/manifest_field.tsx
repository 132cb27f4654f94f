import { FileUp } from "lucide-react";
import { type ReactNode, useState } from "react";
import { Button } from "../../design/button";
import { classes } from "../../design/classes";
import { TextArea } from "../../design/fields";
import { notifyProblem } from "../../design/notify";
import { chooseFile } from "../../parts/choose_file";
import { t } from "../../text/language";

const ACCEPTED = ".yaml,.yml,.json,application/json,application/yaml,text/yaml";
const MAX_BYTES = 1024 * 1024;

/** The text of an endpoint's file: typed, pasted, dropped or chosen. */
export function ManifestField({
  value,
  onChange,
  error,
  rows = 20,
  beside,
}: {
  value: string;
  onChange: (text: string) => void;
  error?: string | undefined;
  rows?: number;
  beside?: ReactNode;
}) {
  const [over, setOver] = useState(false);
  const take = async (file: File | undefined) => {
    if (file === undefined) return;
    if (file.size > MAX_BYTES) notifyProblem(t("fileTooLarge"), new Error(file.name));
    else onChange(await file.text());
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: files are dropped here; the button does the same by keys
    <div
      className={classes("flex flex-col gap-3 rounded-md", over && "outline-2 outline-accent outline-dashed")}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void take(event.dataTransfer.files[0]);
      }}
    >
      <div className="flex flex-wrap items-center gap-2">
        <Button icon={<FileUp size={16} aria-hidden="true" />} onClick={() => void chooseFile(ACCEPTED).then(take)}>
          {t("chooseFile")}
        </Button>
        <span className="text-sm text-quiet">{t("orDrop")}</span>
        {beside}
      </div>
      <TextArea
        label={t("manifest")}
        help={t("manifestHelp")}
        error={error}
        mono
        rows={rows}
        value={value}
        onChange={onChange}
      />
    </div>
  );
}
