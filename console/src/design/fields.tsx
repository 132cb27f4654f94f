import { Autocomplete } from "@base-ui/react/autocomplete";
import { Checkbox as BaseCheckbox } from "@base-ui/react/checkbox";
import { Combobox as BaseCombobox } from "@base-ui/react/combobox";
import { Field } from "@base-ui/react/field";
import { Select as BaseSelect } from "@base-ui/react/select";
import { Slider as BaseSlider } from "@base-ui/react/slider";
import { Switch as BaseSwitch } from "@base-ui/react/switch";
import { Check, ChevronDown, Search } from "lucide-react";
import type { ComponentProps, ReactNode, Ref } from "react";
import { t } from "../text/language";
import { classes } from "./classes";
import { OPTION, POPUP } from "./menu";

const BOX =
  "w-full rounded-md border border-edge bg-card px-2.5 text-base text-ink placeholder:text-quiet " +
  "data-disabled:border-line data-disabled:bg-sunken data-disabled:text-quiet data-invalid:border-bad";
const LABEL = "text-sm font-medium";

interface Words {
  label: string;
  /** Below the control: what it takes. */
  help?: ReactNode;
  /** Why its value is refused: shown instead of the help, and said with the control. */
  error?: string | undefined;
  /** Whether the label is for those only who do not see the control's place. */
  labelHidden?: boolean;
  className?: string;
}

/** A control with its label; help and error are its description, and no part of its name. */
function Labelled({ label, help, error, labelHidden = false, className, children }: Words & { children: ReactNode }) {
  return (
    <Field.Root invalid={error !== undefined} className={classes("flex min-w-0 flex-col gap-1", className)}>
      <Field.Label className={labelHidden ? "sr-only" : LABEL}>{label}</Field.Label>
      {children}
      {error !== undefined && (
        <Field.Error match className="col-span-full text-xs text-bad">
          {error}
        </Field.Error>
      )}
      {error === undefined && help !== undefined && (
        <Field.Description className="text-xs text-quiet">{help}</Field.Description>
      )}
    </Field.Root>
  );
}

type Controlled = { value: string; onChange: (value: string) => void };
type Native = Omit<ComponentProps<"input">, "value" | "onChange" | "className" | "defaultValue">;

export function TextField({
  value,
  onChange,
  ref,
  ...rest
}: Words & Controlled & Native & { ref?: Ref<HTMLInputElement> }) {
  const { label, help, error, labelHidden, className, ...control } = rest;
  return (
    <Labelled label={label} help={help} error={error} labelHidden={labelHidden} className={className}>
      <Field.Control
        {...control}
        ref={ref}
        value={value}
        onValueChange={onChange}
        className={classes(BOX, "h-8.5")}
        autoComplete={control.autoComplete ?? "off"}
        spellCheck={false}
      />
    </Labelled>
  );
}

export function TextArea({
  value,
  onChange,
  rows = 3,
  mono = false,
  ...rest
}: Words & Controlled & { rows?: number; mono?: boolean; placeholder?: string }) {
  const { placeholder, ...shown } = rest;
  return (
    <Labelled {...shown}>
      <Field.Control
        render={<textarea rows={rows} spellCheck={false} />}
        placeholder={placeholder}
        value={value}
        onValueChange={onChange}
        className={classes(BOX, "py-1.5", mono && "font-mono text-sm")}
      />
    </Labelled>
  );
}

/** A field that filters what is below it. */
export function SearchField({
  value,
  onChange,
  ref,
  ...rest
}: Omit<Words, "help" | "error"> & Controlled & Native & { ref?: Ref<HTMLInputElement> }) {
  const { label, className, labelHidden: _, ...control } = rest;
  return (
    <Field.Root className={classes("relative min-w-0", className)}>
      <Field.Label className="sr-only">{label}</Field.Label>
      <Search
        size={15}
        aria-hidden="true"
        className="pointer-events-none absolute top-1/2 left-2.5 -translate-y-1/2 text-quiet"
      />
      <Field.Control
        {...control}
        ref={ref}
        type="search"
        value={value}
        onValueChange={onChange}
        className={classes(BOX, "h-8.5 pl-8")}
        autoComplete="off"
        spellCheck={false}
      />
    </Field.Root>
  );
}

export interface Option<T extends string = string> {
  value: T;
  label: string;
  /** Beside the label, in quieter letters. */
  note?: string;
  disabled?: boolean;
}

/** One of a list. With `search`, the list is filtered by what is typed. */
export function Select<T extends string>({
  options,
  value,
  onChange,
  placeholder,
  disabled = false,
  ...rest
}: Words & {
  options: readonly Option<T>[];
  value: T;
  onChange: (value: T) => void;
  placeholder?: string;
  disabled?: boolean;
}) {
  const label = options.find((option) => option.value === value)?.label;
  return (
    <Labelled {...rest}>
      <BaseSelect.Root
        items={options}
        value={value}
        disabled={disabled}
        onValueChange={(chosen) => chosen !== null && onChange(chosen as T)}
        modal={false}
      >
        <BaseSelect.Trigger className={classes(BOX, "inline-flex h-8.5 items-center justify-between gap-2 text-left")}>
          <BaseSelect.Value className="truncate" title={label ?? placeholder ?? value}>
            {() => label ?? placeholder ?? value}
          </BaseSelect.Value>
          <BaseSelect.Icon>
            <ChevronDown size={15} aria-hidden="true" className="text-quiet" />
          </BaseSelect.Icon>
        </BaseSelect.Trigger>
        <BaseSelect.Portal>
          <BaseSelect.Positioner sideOffset={4} alignItemWithTrigger={false} className="z-50">
            <BaseSelect.Popup
              className={classes(POPUP, "max-h-(--available-height) min-w-(--anchor-width) overflow-auto")}
            >
              {options.map((option) => (
                <BaseSelect.Item
                  key={option.value}
                  value={option.value}
                  disabled={option.disabled ?? false}
                  className={OPTION}
                >
                  <span className="inline-flex w-4">
                    <BaseSelect.ItemIndicator>
                      <Check size={14} aria-hidden="true" />
                    </BaseSelect.ItemIndicator>
                  </span>
                  <BaseSelect.ItemText>{option.label}</BaseSelect.ItemText>
                  {option.note !== undefined && <span className="ml-auto pl-3 text-xs text-quiet">{option.note}</span>}
                </BaseSelect.Item>
              ))}
            </BaseSelect.Popup>
          </BaseSelect.Positioner>
        </BaseSelect.Portal>
      </BaseSelect.Root>
    </Labelled>
  );
}

/** Any number of a list, which is filtered by what is typed; with `free`, also what is not in the list. */
export function Combobox({
  options,
  value,
  onChange,
  placeholder,
  ...rest
}: Words & {
  options: readonly Option[];
  value: readonly string[];
  onChange: (value: string[]) => void;
  placeholder?: string;
}) {
  return (
    <Labelled {...rest}>
      <BaseCombobox.Root
        multiple
        items={options.map((option) => option.value)}
        value={[...value]}
        onValueChange={(chosen: string[]) => onChange(chosen)}
        itemToStringLabel={(item: string) => options.find((option) => option.value === item)?.label ?? item}
      >
        <BaseCombobox.Chips className={classes(BOX, "flex min-h-8.5 flex-wrap items-center gap-1 py-1")}>
          <BaseCombobox.Value>
            {(chosen: string[]) => (
              <>
                {chosen.map((item) => (
                  <BaseCombobox.Chip
                    key={item}
                    className="inline-flex h-6 items-center gap-1 rounded-sm bg-sunken pl-2 text-sm"
                  >
                    {options.find((option) => option.value === item)?.label ?? item}
                    <BaseCombobox.ChipRemove
                      className="px-1.5 text-quiet hover:text-ink"
                      aria-label={t("remove", { name: item })}
                    >
                      ×
                    </BaseCombobox.ChipRemove>
                  </BaseCombobox.Chip>
                ))}
                <BaseCombobox.Input
                  placeholder={chosen.length === 0 ? placeholder : ""}
                  className="min-w-16 grow bg-transparent text-base outline-none placeholder:text-quiet"
                />
              </>
            )}
          </BaseCombobox.Value>
        </BaseCombobox.Chips>
        <BaseCombobox.Portal>
          <BaseCombobox.Positioner sideOffset={4} className="z-50">
            <BaseCombobox.Popup
              className={classes(POPUP, "max-h-(--available-height) min-w-(--anchor-width) overflow-auto")}
            >
              <BaseCombobox.Empty className="px-2.5 py-1.5 text-sm text-quiet empty:hidden">
                {t("nothingMatches")}
              </BaseCombobox.Empty>
              <BaseCombobox.List>
                {(item: string) => (
                  <BaseCombobox.Item key={item} value={item} className={OPTION}>
                    <span className="inline-flex w-4">
                      <BaseCombobox.ItemIndicator>
                        <Check size={14} aria-hidden="true" />
                      </BaseCombobox.ItemIndicator>
                    </span>
                    {options.find((option) => option.value === item)?.label ?? item}
                  </BaseCombobox.Item>
                )}
              </BaseCombobox.List>
            </BaseCombobox.Popup>
          </BaseCombobox.Positioner>
        </BaseCombobox.Portal>
      </BaseCombobox.Root>
    </Labelled>
  );
}

/** A text for which there are suggestions: one of them, or anything else. */
export function Suggest({
  suggestions,
  value,
  onChange,
  placeholder,
  mono = false,
  ...rest
}: Words & Controlled & { suggestions: readonly string[]; placeholder?: string; mono?: boolean }) {
  return (
    <Labelled {...rest}>
      <Autocomplete.Root items={suggestions} value={value} onValueChange={onChange} openOnInputClick>
        <Autocomplete.Input
          placeholder={placeholder}
          className={classes(BOX, "h-8.5", mono && "font-mono text-sm")}
          autoComplete="off"
          spellCheck={false}
        />
        <Autocomplete.Portal>
          <Autocomplete.Positioner sideOffset={4} className="z-50 data-empty:hidden">
            <Autocomplete.Popup
              className={classes(POPUP, "max-h-(--available-height) min-w-(--anchor-width) overflow-auto")}
            >
              <Autocomplete.List>
                {(item: string) => (
                  <Autocomplete.Item key={item} value={item} className={OPTION}>
                    {item}
                  </Autocomplete.Item>
                )}
              </Autocomplete.List>
            </Autocomplete.Popup>
          </Autocomplete.Positioner>
        </Autocomplete.Portal>
      </Autocomplete.Root>
    </Labelled>
  );
}

const TICK =
  "flex size-4.5 shrink-0 items-center justify-center rounded-sm border border-edge bg-card " +
  "data-checked:border-accent data-checked:bg-accent data-checked:text-on-accent data-indeterminate:border-accent data-indeterminate:bg-accent data-indeterminate:text-on-accent";

/** A tick without words beside it, in a table. */
export function Tick({
  label,
  checked,
  onChange,
  indeterminate = false,
}: {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  indeterminate?: boolean;
}) {
  return (
    <BaseCheckbox.Root
      aria-label={label}
      checked={checked}
      indeterminate={indeterminate}
      onCheckedChange={onChange}
      className={TICK}
    >
      <BaseCheckbox.Indicator>
        {indeterminate ? <span className="block h-0.5 w-2.5 bg-current" /> : <Check size={13} aria-hidden="true" />}
      </BaseCheckbox.Indicator>
    </BaseCheckbox.Root>
  );
}

export function Checkbox({
  label,
  help,
  checked,
  onChange,
}: {
  label: string;
  help?: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
}) {
  return (
    <Field.Root className="flex flex-col gap-1">
      <Field.Label className="inline-flex items-center gap-2 text-base">
        <BaseCheckbox.Root checked={checked} onCheckedChange={onChange} className={TICK}>
          <BaseCheckbox.Indicator>
            <Check size={13} aria-hidden="true" />
          </BaseCheckbox.Indicator>
        </BaseCheckbox.Root>
        {label}
      </Field.Label>
      {help !== undefined && <Field.Description className="pl-6.5 text-xs text-quiet">{help}</Field.Description>}
    </Field.Root>
  );
}

/** Something that is on or off at once, without a button that saves it. */
export function Switch({
  label,
  checked,
  onChange,
  disabled = false,
}: {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  disabled?: boolean;
}) {
  return (
    <Field.Root disabled={disabled}>
      <Field.Label className="inline-flex items-center gap-2 text-base">
        <BaseSwitch.Root
          checked={checked}
          onCheckedChange={onChange}
          className="flex h-5 w-9 shrink-0 items-center rounded-full border border-edge bg-sunken px-0.5 data-checked:border-accent data-checked:bg-accent"
        >
          <BaseSwitch.Thumb className="size-3.5 rounded-full bg-edge transition-transform data-checked:translate-x-4 data-checked:bg-on-accent" />
        </BaseSwitch.Root>
        {label}
      </Field.Label>
    </Field.Root>
  );
}

/** A number by sight, from `min` to `max`. `free` is drawn behind it: what can be had now. */
export function Slider({
  label,
  value,
  min = 0,
  max,
  step = 1,
  free,
  words,
  onChange,
}: {
  label: string;
  value: number;
  min?: number;
  max: number;
  step?: number;
  free?: number;
  /** The value in words, with its unit. */
  words: string;
  onChange: (value: number) => void;
}) {
  const share = free === undefined || max <= min ? 0 : Math.max(0, Math.min(100, (100 * (free - min)) / (max - min)));
  return (
    <BaseSlider.Root
      value={Math.min(max, Math.max(min, value))}
      min={min}
      max={max}
      step={step}
      onValueChange={(next) => onChange(next as number)}
    >
      <BaseSlider.Control className="flex h-8.5 w-full touch-none items-center px-2">
        <BaseSlider.Track className="h-1.5 w-full rounded-full bg-sunken">
          {free !== undefined && (
            <span
              aria-hidden="true"
              className="absolute inset-y-0 left-0 rounded-full bg-good-soft"
              style={{ width: `${share}%` }}
            />
          )}
          <BaseSlider.Indicator className="rounded-full bg-accent" />
          <BaseSlider.Thumb
            aria-label={label}
            getAriaValueText={() => words}
            className="size-4 rounded-full border-2 border-accent bg-card has-[:focus-visible]:outline-2 has-[:focus-visible]:outline-accent"
          />
        </BaseSlider.Track>
      </BaseSlider.Control>
    </BaseSlider.Root>
  );
}
