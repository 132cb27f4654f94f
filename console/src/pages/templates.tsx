import { LayoutTemplate, Plus } from "lucide-react";
import { Suspense, useContext, useState } from "react";
import { allPages } from "../api/client";
import { templates } from "../api/templates";
import { Button } from "../design/button";
import { ConfirmDialog } from "../design/dialog";
import { SearchField } from "../design/fields";
import { notify, notifyProblem } from "../design/notify";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { ProjectRole, UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { type Template, TemplateView } from "../gen/retinue/manager/v1/template_service_pb";
import { Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { lazy } from "../parts/lazy";
import { useLoaded } from "../parts/store";
import { t } from "../text/language";
import { TemplateCard } from "./templates/card";

const TemplateEditor = lazy(() => import("./templates/editor"));
const TemplateVersions = lazy(() => import("./templates/versions"));

type Opened = { what: "new" } | { what: "shown" | "edited" | "deleted"; template: Template };

export default function Templates() {
  const caller = useContext(CallerContext);
  const [opened, setOpened] = useState<Opened>();
  const [search, setSearch] = useState("");
  const loaded = useLoaded(
    "templates",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await templates.listTemplates({ pageToken, view: TemplateView.FULL }, { signal });
        return { items: page.templates, nextPageToken: page.nextPageToken };
      }),
    30,
  );
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = loaded.value?.filter(({ name, description, project, author }) =>
    words.every((word) => `${name} ${description} ${project} ${author}`.toLowerCase().includes(word)),
  );
  const mayChange = (template: Template) =>
    caller.role === UserRole.ADMIN ||
    template.author === caller.name ||
    caller.memberships.some(({ project, role }) => project === template.project && role === ProjectRole.ADMIN);
  const close = () => setOpened(undefined);
  const saved = () => {
    close();
    loaded.reload();
  };

  const remove = async (template: Template) => {
    await templates.deleteTemplate({ template: template.id, etag: template.etag });
    loaded.reload();
    notify(t("templateDeleted", { name: template.name }), { undo: () => void restore(template) });
  };
  const restore = async ({ name, project, forAllProjects, description, spec }: Template) => {
    try {
      await templates.createTemplate({
        template: { name, project, forAllProjects, description, spec },
        requestId: crypto.randomUUID(),
      });
      loaded.reload();
    } catch (error) {
      notifyProblem(t("notRestored", { name }), error);
    }
  };

  const create = (
    <Button look="primary" icon={<Plus size={16} aria-hidden="true" />} onClick={() => setOpened({ what: "new" })}>
      {t("newTemplate")}
    </Button>
  );
  return (
    <Page title={t("templates")} lead={t("templatesLead")} actions={create}>
      <Trouble problem={loaded.problem} retry={loaded.reload} />
      {loaded.value === undefined && loaded.problem === undefined && <Skeleton lines={6} />}
      {loaded.value?.length === 0 && (
        <Empty icon={<LayoutTemplate size={32} aria-hidden="true" />} title={t("noTemplates")}>
          {t("noTemplatesHelp")}
        </Empty>
      )}
      {loaded.value !== undefined && loaded.value.length > 0 && (
        <SearchField
          label={t("searchTemplates")}
          placeholder={t("searchTemplates")}
          value={search}
          onChange={setSearch}
          className="w-full sm:max-w-sm"
        />
      )}
      {shown?.length === 0 && loaded.value?.length !== 0 && <p className="text-quiet">{t("nothingMatches")}</p>}
      {shown !== undefined && shown.length > 0 && (
        <ul
          aria-label={t("templates")}
          className="grid grid-cols-[repeat(auto-fill,minmax(min(18rem,100%),1fr))] gap-4"
        >
          {shown.map((template) => (
            <TemplateCard
              key={template.id}
              template={template}
              mayChange={mayChange(template)}
              onShow={() => setOpened({ what: "shown", template })}
              onEdit={() => setOpened({ what: "edited", template })}
              onDelete={() => setOpened({ what: "deleted", template })}
            />
          ))}
        </ul>
      )}
      <Suspense>
        {opened?.what === "new" && <TemplateEditor onClose={close} onSaved={saved} />}
        {opened?.what === "edited" && <TemplateEditor template={opened.template} onClose={close} onSaved={saved} />}
        {opened?.what === "shown" && <TemplateVersions template={opened.template} onClose={close} />}
      </Suspense>
      {opened?.what === "deleted" && (
        <ConfirmDialog
          title={t("deleteTemplate", { name: opened.template.name })}
          action={t("delete")}
          onConfirm={() => remove(opened.template)}
          onClose={close}
        >
          <p>{t("deleteTemplateHelp", { name: opened.template.name, versions: opened.template.version })}</p>
        </ConfirmDialog>
      )}
    </Page>
  );
}
