import { Card } from "../../design/card";
import { Slider, TextField } from "../../design/fields";
import { Pick } from "../../design/pick";
import { refusalOf } from "../../spec/refusals";
import { type SlotRange, sizeOf, sizesOf, slotOrder, spoken, stepOf, times, written } from "../../spec/sizes";
import { amount, amounts, amountText } from "../../text/format";
import { type Key, t } from "../../text/language";
import { Quotas } from "./quotas";
import type { SectionProps } from "./section";

const SLOT_NAMES: Record<string, Key> = { cpu: "slotCpu", mem: "slotMem", disk: "slotDisk" };

/** How much each kernel gets: a size, or amounts. */
export function Amounts({
  form,
  change,
  base,
  refusals,
  choices,
  ranges,
}: SectionProps & { ranges: ReadonlyMap<string, SlotRange> }) {
  const sizes = sizesOf(ranges);
  const slots = { ...base?.kernel?.slots, ...form.slots };
  const kernels = Number(form.clusterSize || base?.clusterSize) || 1;
  const setSlot = (slot: string, value: string) => change({ slots: { ...form.slots, [slot]: value } });
  return (
    <Card title={t("stepHowMuch")}>
      <div className="flex flex-col gap-2.5">
        {sizes.length > 1 && (
          <Pick
            label={t("sizes")}
            className="grid-cols-4"
            tight
            value={sizeOf(sizes, slots)}
            onChange={(size) => {
              const found = sizes.find((one) => one.size === size);
              if (found !== undefined) change({ slots: { ...form.slots, ...found.slots } });
            }}
            items={sizes.map(({ size, slots: given }) => ({
              value: size,
              title: t(`size_${size}`),
              note: (
                <>
                  <span className="block">{t("sizeCpu", { cpu: given.cpu ?? "0" })}</span>
                  <span className="block">{amountText("mem", amount(given.mem ?? "0"))}</span>
                </>
              ),
            }))}
          />
        )}
        {slotOrder(new Set([...ranges.keys(), ...Object.keys(slots)]))
          .filter((slot, at, all) => all.indexOf(slot) === at)
          .map((slot) => (
            <Amount
              key={slot}
              slot={slot}
              range={ranges.get(slot)}
              typed={form.slots[slot] ?? ""}
              value={slots[slot] || base?.kernel?.slots[slot] || ""}
              error={refusalOf(refusals, `kernel.slots['${slot}']`)}
              onChange={(value) => setSlot(slot, value)}
            />
          ))}
        <p className="text-sm text-quiet tabular-nums">
          {kernels > 1
            ? t("inAllOf", { count: kernels, amounts: amounts(times(slots, kernels)) })
            : t("inAll", { amounts: amounts(times(slots, 1)) })}
        </p>
        <Quotas quotas={choices.quotas} project={form.project} />
      </div>
    </Card>
  );
}

function Amount({
  slot,
  range,
  typed,
  value,
  error,
  onChange,
}: {
  slot: string;
  range: SlotRange | undefined;
  typed: string;
  value: string;
  error: string | undefined;
  onChange: (value: string) => void;
}) {
  const key = SLOT_NAMES[slot];
  const name = key === undefined ? slot : t(key);
  const now = amount(value) || 0;
  return (
    <div className="grid grid-cols-[6.5rem_minmax(0,1fr)_5.5rem] items-start gap-x-2 gap-y-1">
      <div className="flex min-h-8.5 flex-col justify-center leading-tight">
        <span className="truncate text-sm font-medium" aria-hidden="true" title={name}>
          {name}
        </span>
        {range !== undefined && (
          <span
            className="truncate text-2xs text-quiet tabular-nums"
            title={t("freeOnANode", { free: amountText(slot, range.free), all: amountText(slot, range.most) })}
          >
            {t("freeOf", { free: amountText(slot, range.free), all: amountText(slot, range.most) })}
          </span>
        )}
      </div>
      {range !== undefined && range.most > 0 ? (
        <Slider
          label={t("sliderOf", { name })}
          value={now}
          min={0}
          max={range.most}
          step={stepOf(slot, range.most)}
          free={range.free}
          words={spoken(slot, now)}
          onChange={(next) => onChange(next === 0 ? "" : written(slot, next))}
        />
      ) : (
        <span />
      )}
      <TextField
        label={slot}
        labelHidden
        error={error}
        placeholder={typed === "" ? value || t("asUsual") : ""}
        value={typed}
        onChange={onChange}
        // Its parts are of this row: why it is refused has the width of all of it.
        className="contents!"
      />
    </div>
  );
}
