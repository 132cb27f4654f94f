import { useState } from "react";
import { allPages } from "../../api/client";
import { templates } from "../../api/templates";
import { Code } from "../../design/code";
import { Sheet } from "../../design/dialog";
import { Select } from "../../design/fields";
import { Skeleton } from "../../design/states";
import { type Template, TemplateView } from "../../gen/retinue/manager/v1/template_service_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { yamlOf } from "../../spec/text";
import { moment } from "../../text/format";
import { t } from "../../text/language";

/** What a template asks for, in each of its versions. */
export default function TemplateVersions({ template, onClose }: { template: Template; onClose: () => void }) {
  const [version, setVersion] = useState(String(template.version));
  const loaded = useLoaded(`versions ${template.id} ${template.version}`, (signal) =>
    allPages(async (pageToken) => {
      const page = await templates.listTemplates(
        { pageToken, versionsOf: template.id, view: TemplateView.FULL },
        { signal },
      );
      return { items: page.templates, nextPageToken: page.nextPageToken };
    }),
  );
  const shown = loaded.value?.find((one) => String(one.version) === version);
  return (
    <Sheet title={template.name} onClose={onClose}>
      <Trouble problem={loaded.problem} retry={loaded.reload} />
      {loaded.value === undefined && loaded.problem === undefined && <Skeleton lines={6} />}
      {loaded.value !== undefined && (
        <Select
          label={t("version")}
          value={version}
          onChange={setVersion}
          options={loaded.value.map((one) => ({
            value: String(one.version),
            label: t("versionBy", { version: one.version, author: one.author }),
            note: moment(one.updateTime),
          }))}
        />
      )}
      {shown?.description && <p className="text-quiet">{shown.description}</p>}
      {shown?.spec && <Code code={yamlOf(shown.spec)} language="yaml" label={t("templateSpec")} />}
    </Sheet>
  );
}
