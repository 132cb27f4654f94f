import { LayoutTemplate } from "lucide-react";
import { useState } from "react";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { Code, type CodeLanguage } from "../../design/code";
import { Tabs } from "../../design/tabs";
import type { SessionSpec } from "../../gen/retinue/manager/v1/session_pb";
import { type Commands, commandsFor } from "../../spec/commands";
import { t } from "../../text/language";

const KINDS: readonly { id: keyof Commands; label: string; language: CodeLanguage }[] = [
  { id: "cli", label: "CLI", language: "bash" },
  { id: "python", label: "Python", language: "python" },
  { id: "yaml", label: "YAML", language: "yaml" },
  { id: "json", label: "JSON", language: "json" },
  { id: "grpcurl", label: "grpcurl", language: "bash" },
];

/** The request as a command, a program, a file and a call. */
export function SameAs({ spec, onSave }: { spec: SessionSpec; onSave: () => void }) {
  const [kind, setKind] = useState<keyof Commands>("cli");
  const commands = commandsFor(spec);
  const language = KINDS.find(({ id }) => id === kind)?.language ?? "text";
  return (
    <Card
      title={t("sameAs")}
      actions={
        <Button size="small" icon={<LayoutTemplate size={15} aria-hidden="true" />} onClick={onSave}>
          {t("saveTemplate")}
        </Button>
      }
    >
      <Tabs label={t("sameAs")} items={KINDS} selected={kind} onSelect={setKind} className="-mt-3">
        <div id="same-text">
          <Code code={commands[kind]} language={language} label={t("sameAs")} wrap />
        </div>
      </Tabs>
    </Card>
  );
}
