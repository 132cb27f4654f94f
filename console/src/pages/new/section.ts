import type { SessionSpec } from "../../gen/retinue/manager/v1/session_pb";
import type { Form, Refusals } from "../../spec/form";
import type { Choices } from "./choices";

/** What each part of the page is given. */
export interface SectionProps {
  form: Form;
  change: (part: Partial<Form>) => void;
  /** What the chosen template has: it holds where the form is empty. */
  base: SessionSpec | undefined;
  refusals: Refusals;
  choices: Choices;
}
