import { Card } from "../../design/card";
import { Suggest, TextField } from "../../design/fields";
import { SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { useSessions } from "../../parts/store";
import { refusalOf } from "../../spec/refusals";
import { quoted } from "../../spec/words";
import { t } from "../../text/language";
import type { SectionProps } from "./section";
import { type Start, Starts } from "./starts";

/** What runs: how it begins, and its program. */
export function Program({
  form,
  change,
  base,
  refusals,
  choices,
  start,
  onStart,
}: SectionProps & { start: Start; onStart: (start: Start) => void }) {
  const sessions = useSessions();
  const images = [...new Set(sessions.flatMap(({ spec }) => spec?.kernel?.image || []))].sort();
  return (
    <Card title={t("stepWhat")}>
      <div className="flex flex-col gap-3">
        <Starts start={start} onStart={onStart} templates={choices.templates} />
        <TextField
          label={t("name")}
          placeholder={base?.name || t("nameGenerated")}
          error={refusalOf(refusals, "name")}
          value={form.name}
          onChange={(name) => change({ name })}
        />
        {form.type !== SessionType.SYSTEM && (
          <>
            <TextField
              label={t("command")}
              help={t(start === "batch" ? "commandHelpBatch" : "commandHelp")}
              placeholder={base?.kernel?.command.map(quoted).join(" ")}
              error={refusalOf(refusals, "kernel.command")}
              value={form.command}
              onChange={(command) => change({ command })}
            />
            <Suggest
              label={t("image")}
              help={t("hostRoot")}
              placeholder={base?.kernel?.image}
              error={refusalOf(refusals, "kernel.image")}
              suggestions={images}
              value={form.image}
              onChange={(image) => change({ image })}
            />
          </>
        )}
      </div>
    </Card>
  );
}
