import { Choice } from "../../design/choice";
import { t } from "../../text/language";
import { RANGES, type Range } from "./stats";

/** How long a time charts show. */
export function RangeChoice({ value, onChange }: { value: Range; onChange: (range: Range) => void }) {
  const ranges = Object.keys(RANGES) as Range[];
  return (
    <Choice
      label={t("timeShown")}
      value={value}
      onChange={onChange}
      options={ranges.map((range) => ({ value: range, label: t(RANGES[range]) }))}
    />
  );
}
