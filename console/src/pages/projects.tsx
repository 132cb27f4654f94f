import { FolderKanban, Plus } from "lucide-react";
import { useContext, useState } from "react";
import { useSearchParams } from "react-router";
import { accounts, allPages } from "../api/client";
import { Button, NameButton } from "../design/button";
import { Card } from "../design/card";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Table } from "../design/table";
import { QuotaKind, UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { useLoaded } from "../parts/store";
import { t } from "../text/administration";
import { moment } from "../text/format";
import { roleKey, useUsers } from "./accounts/load";
import { NewProject } from "./projects/new_project";
import { ProjectSheet } from "./projects/sheet";
import { useQuotas } from "./quotas/load";
import { QuotaMeters } from "./quotas/meters";

/** Projects: who is in them, and what they may use. */
export default function Projects() {
  const caller = useContext(CallerContext);
  const admin = caller.role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const [making, setMaking] = useState(false);
  const found = useLoaded("projects", (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listProjects({ pageToken, pageSize: 500 }, { signal });
      return { items: page.projects, nextPageToken: page.nextPageToken };
    }),
  );
  const users = useUsers(admin);
  const quotas = useQuotas();
  const quotaOf = (project: string) =>
    quotas.value?.find(({ kind, name }) => kind === QuotaKind.PROJECT && name === project);
  const membersOf = (project: string) =>
    (users.value ?? []).flatMap(({ name, memberships }) =>
      memberships.filter((each) => each.project === project).map(({ role }) => ({ user: name, project, role })),
    );
  const show = (name: string) => setParameters(name === "" ? {} : { project: name }, { replace: true });
  const chosen = found.value?.find(({ name }) => name === parameters.get("project"));
  const reload = () => {
    found.reload();
    users.reload();
    quotas.reload();
  };
  const newProject = admin && (
    <Button look="primary" icon={<Plus size={16} aria-hidden="true" />} onClick={() => setMaking(true)}>
      {t("newProject")}
    </Button>
  );
  return (
    <Page title={t("projects")} lead={t("projectsLead")} actions={newProject}>
      <Trouble problem={found.problem ?? users.problem ?? quotas.problem} retry={reload} />
      {found.value === undefined ? (
        !found.problem && <Skeleton lines={6} />
      ) : (
        <Card flush>
          <Table
            label={t("projects")}
            numeric={admin ? [t("members")] : []}
            empty={
              <Empty icon={<FolderKanban size={32} aria-hidden="true" />} title={t("noProjects")} action={newProject}>
                {t(admin ? "noProjectsHelp" : "noProjectsAsk")}
              </Empty>
            }
            head={[t("name"), t(admin ? "members" : "yourRole"), t("quota"), t("created")]}
            rows={found.value.map((project) => {
              const quota = quotaOf(project.name);
              const own = caller.memberships.find((each) => each.project === project.name);
              return {
                key: project.name,
                cells: [
                  <NameButton key="name" onClick={() => show(project.name)}>
                    {project.name}
                  </NameButton>,
                  admin ? membersOf(project.name).length : own ? t(roleKey(own.role)) : "–",
                  quota ? (
                    <div key="quota" className="min-w-56">
                      <QuotaMeters quota={quota} />
                    </div>
                  ) : (
                    <span key="quota" className="text-quiet">
                      {t("noLimit")}
                    </span>
                  ),
                  moment(project.createTime),
                ],
              };
            })}
          />
        </Card>
      )}
      {making && (
        <NewProject
          onClose={() => setMaking(false)}
          onDone={(name) => {
            setMaking(false);
            reload();
            show(name);
          }}
        />
      )}
      {chosen && (
        <ProjectSheet
          project={chosen}
          admin={admin}
          quota={quotaOf(chosen.name)}
          members={admin ? membersOf(chosen.name) : undefined}
          users={(users.value ?? []).map(({ name }) => name)}
          onClose={() => show("")}
          onDone={reload}
        />
      )}
    </Page>
  );
}
