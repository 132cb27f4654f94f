import { toJson } from "@bufbuild/protobuf";
import { useState } from "react";
import { sessions } from "../../api/client";
import { Choice } from "../../design/choice";
import { Code, type CodeLanguage } from "../../design/code";
import { Skeleton } from "../../design/states";
import { type Session, SessionSpecSchema } from "../../gen/retinue/manager/v1/session_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { commandsFor } from "../../spec/commands";
import { yaml } from "../../spec/yaml";
import { t } from "../../text/language";

type Form = "YAML" | "JSON" | "CLI" | "Python";
const LANGUAGES: Record<Form, CodeLanguage> = { YAML: "yaml", JSON: "json", CLI: "bash", Python: "python" };

/** What was asked for: as YAML, as a message of the API, and as commands. */
export default function Spec({ session }: { session: Session }) {
  const [form, setForm] = useState<Form>("YAML");
  const found = useLoaded(`spec ${session.id}`, async (signal) => {
    return (await sessions.getSession({ session: session.id }, { signal })).session?.spec;
  });
  const spec = found.value;
  if (spec === undefined)
    return found.problem ? <Trouble problem={found.problem} retry={found.reload} /> : <Skeleton lines={9} />;
  const commands = commandsFor(spec);
  const texts: Record<Form, string> = {
    YAML: yaml(toJson(SessionSpecSchema, spec, { useProtoFieldName: true })),
    JSON: JSON.stringify(toJson(SessionSpecSchema, spec), undefined, 2),
    CLI: commands.cli,
    Python: commands.python,
  };
  return (
    <div className="flex flex-col gap-3">
      <span>
        <Choice
          label={t("format")}
          value={form}
          onChange={setForm}
          options={Object.keys(texts).map((each) => ({ value: each as Form, label: each }))}
        />
      </span>
      <Code code={texts[form]} language={LANGUAGES[form]} label={form} />
    </div>
  );
}
