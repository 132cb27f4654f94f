import { toJson } from "@bufbuild/protobuf";
import { useState } from "react";
import { Link } from "react-router";
import { allPages } from "../api/client";
import { templates } from "../api/templates";
import { SessionSpecSchema } from "../gen/retinue/manager/v1/session_pb";
import { type Template, TemplateView } from "../gen/retinue/manager/v1/template_service_pb";
import { CopyButton, Dialog, Table, Trouble } from "../parts/basics";
import { useLoaded } from "../parts/store";
import { moment } from "../text/format";
import { t } from "../text/language";

export default function Templates() {
  const [shown, setShown] = useState<Template>();
  const found = useLoaded("templates", (signal) =>
    allPages(async (pageToken) => {
      const page = await templates.listTemplates({ pageToken, view: TemplateView.FULL }, { signal });
      return { items: page.templates, nextPageToken: page.nextPageToken };
    }),
  );
  const json = shown?.spec ? JSON.stringify(toJson(SessionSpecSchema, shown.spec), undefined, 2) : "";
  return (
    <>
      <h1>{t("templates")}</h1>
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value?.length === 0 && <p className="note">{t("none")}</p>}
      <Table
        label={t("templates")}
        head={[t("name"), t("project"), t("description"), t("version"), t("author"), t("changed"), t("newSession")]}
        rows={(found.value ?? []).map((template) => ({
          key: template.id,
          cells: [
            <button key="name" type="button" className="plain" onClick={() => setShown(template)}>
              {template.name}
            </button>,
            template.forAllProjects ? t("all") : template.project,
            template.description,
            String(template.version),
            template.author,
            moment(template.updateTime),
            <Link key="new" to={`/sessions/new?template=${encodeURIComponent(template.name)}`}>
              {t("newSession")}
              <span className="hidden"> {template.name}</span>
            </Link>,
          ],
        }))}
      />
      {shown && (
        <Dialog title={shown.name} onClose={() => setShown(undefined)}>
          <pre>{json}</pre>
          <form method="dialog" className="actions">
            <CopyButton text={json} />
            <button type="submit">{t("close")}</button>
          </form>
        </Dialog>
      )}
    </>
  );
}
