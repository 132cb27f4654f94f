import { AppWindow, FolderSync, LayoutTemplate, ListChecks, SquareTerminal } from "lucide-react";
import { useState } from "react";
import { Badge } from "../../design/badge";
import { SearchField } from "../../design/fields";
import { Pick, type PickItem } from "../../design/pick";
import { SessionType } from "../../gen/retinue/manager/v1/session_pb";
import type { Template } from "../../gen/retinue/manager/v1/template_service_pb";
import { type Form, fromTemplate, withoutTemplate } from "../../spec/form";
import { t } from "../../text/language";

/** What a session begins as: one of these, or `template:NAME`. */
export type Start = "shell" | "web" | "batch" | "files" | `template:${string}`;

const ICON = 16;
// From this many templates on they can be searched.
const MANY = 6;
const WEB = { name: "web", protocol: "http", number: "8000" } as const;

/** Returns the form as another start has it; what was typed stays. */
export function started(form: Form, start: Start): Form {
  if (start.startsWith("template:")) return fromTemplate(form, start.slice("template:".length));
  const before = withoutTemplate(form);
  const ports = before.ports.filter((row) => JSON.stringify(row) !== JSON.stringify(WEB));
  const onlyBatch = { dependsOn: [], attempts: "" };
  switch (start) {
    case "batch":
      return { ...before, type: SessionType.BATCH, ports };
    case "files":
      return {
        ...before,
        ...onlyBatch,
        type: SessionType.SYSTEM,
        ports,
        mounts: before.mounts.length > 0 ? before.mounts : [{ source: "", target: "", writable: false }],
      };
    case "web":
      return { ...before, ...onlyBatch, type: SessionType.INTERACTIVE, ports: ports.length > 0 ? ports : [WEB] };
    default:
      return { ...before, ...onlyBatch, type: SessionType.INTERACTIVE, ports };
  }
}

export function Starts({
  start,
  onStart,
  templates,
}: {
  start: Start;
  onStart: (start: Start) => void;
  templates: readonly Template[];
}) {
  const [search, setSearch] = useState("");
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = templates.filter(
    ({ name, description }) =>
      `template:${name}` === start || words.every((word) => `${name} ${description}`.toLowerCase().includes(word)),
  );
  const items: PickItem<Start>[] = [
    { value: "shell", title: t("startShell"), note: t("startShellNote"), icon: <SquareTerminal size={ICON} /> },
    { value: "web", title: t("startWeb"), note: t("startWebNote"), icon: <AppWindow size={ICON} /> },
    { value: "batch", title: t("startBatch"), note: t("startBatchNote"), icon: <ListChecks size={ICON} /> },
    { value: "files", title: t("startFiles"), note: t("startFilesNote"), icon: <FolderSync size={ICON} /> },
    ...shown.map(
      (template): PickItem<Start> => ({
        value: `template:${template.name}`,
        title: template.name,
        note: template.description || t("templateOf", { author: template.author }),
        icon: <LayoutTemplate size={ICON} />,
        beside: template.spec !== undefined && template.spec.apps.length > 0 && (
          <Badge tone="accent">{template.spec.apps.map((app) => app.name).join(", ")}</Badge>
        ),
      }),
    ),
  ];
  return (
    <div className="flex flex-col gap-2">
      {templates.length >= MANY && (
        <SearchField
          label={t("searchTemplates")}
          placeholder={t("searchTemplates")}
          value={search}
          onChange={setSearch}
        />
      )}
      <div className="max-h-72 overflow-y-auto p-0.5">
        <Pick label={t("startFrom")} items={items} value={start} onChange={onStart} />
      </div>
    </div>
  );
}
