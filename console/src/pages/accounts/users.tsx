import { Gauge, Plus } from "lucide-react";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { Badge } from "../../design/badge";
import { Button, NameButton } from "../../design/button";
import { Card } from "../../design/card";
import { SearchField } from "../../design/fields";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import { ProjectRole, QuotaKind, type User, UserRole } from "../../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../../parts/basics";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { QuotaDialog } from "../quotas/dialog";
import { roleKey, useProjectNames, useUsers } from "./load";
import { NewUser } from "./new_user";
import { UserSheet } from "./user_sheet";

/** All users, for administrators. */
export function Users({ self }: { self: string }) {
  const found = useUsers(true);
  const projects = useProjectNames();
  const [parameters, setParameters] = useSearchParams();
  const [words, setWords] = useState("");
  const [making, setMaking] = useState(false);
  const [limiting, setLimiting] = useState("");
  const show = (name: string) => setParameters(name === "" ? {} : { user: name }, { replace: true });
  const chosen = found.value?.find(({ name }) => name === parameters.get("user"));
  const text = words.trim().toLowerCase();
  const shown = (found.value ?? []).filter(
    ({ name, memberships }) => name.includes(text) || memberships.some(({ project }) => project.includes(text)),
  );
  return (
    <>
      <div className="flex flex-wrap items-center gap-3">
        <SearchField
          label={t("findUser")}
          placeholder={t("findUser")}
          className="w-64 max-sm:w-full"
          value={words}
          onChange={setWords}
        />
        <Button
          look="primary"
          className="ml-auto"
          icon={<Plus size={16} aria-hidden="true" />}
          onClick={() => setMaking(true)}
        >
          {t("newUser")}
        </Button>
      </div>
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && !found.problem && <Skeleton lines={6} />}
      {found.value !== undefined && (
        <Card flush>
          <Table
            label={t("users")}
            empty={<Empty title={t("nothingMatches")} />}
            head={[t("name"), t("role"), t("projects"), t("fileOwner"), t("created"), t("actions")]}
            rows={shown.map((user) => ({
              key: user.name,
              cells: [
                <NameButton key="name" onClick={() => show(user.name)}>
                  {user.name}
                </NameButton>,
                <Badge key="role" tone={user.role === UserRole.ADMIN ? "accent" : "neutral"}>
                  {t(user.role === UserRole.ADMIN ? "administrator" : "ordinaryUser")}
                </Badge>,
                <ProjectMarks key="projects" user={user} />,
                user.fileOwner ? `${user.fileOwner.uid}:${user.fileOwner.gid}` : "–",
                moment(user.createTime),
                <Button
                  key="quota"
                  size="small"
                  icon={<Gauge size={15} aria-hidden="true" />}
                  onClick={() => setLimiting(user.name)}
                >
                  {t("quota")}
                  <span className="sr-only"> {user.name}</span>
                </Button>,
              ],
            }))}
          />
        </Card>
      )}
      {making && (
        <NewUser
          projects={projects}
          onClose={() => setMaking(false)}
          onDone={(name) => {
            setMaking(false);
            found.reload();
            show(name);
          }}
        />
      )}
      {limiting && (
        <QuotaDialog
          owner={{ kind: QuotaKind.USER, name: limiting }}
          onClose={() => setLimiting("")}
          onDone={() => undefined}
        />
      )}
      {chosen && (
        <UserSheet
          user={chosen}
          self={chosen.name === self}
          projects={projects}
          onClose={() => show("")}
          onDone={found.reload}
        />
      )}
    </>
  );
}

const MOST = 4;

function ProjectMarks({ user }: { user: User }) {
  return (
    <span className="inline-flex flex-wrap gap-1">
      {user.memberships.slice(0, MOST).map(({ project, role }) => (
        <Badge key={project} title={t(roleKey(role))} tone={role === ProjectRole.ADMIN ? "accent" : "neutral"}>
          {project}
          {role === ProjectRole.ADMIN && ` · ${t("projectAdmin")}`}
        </Badge>
      ))}
      {user.memberships.length > MOST && (
        <span className="text-sm text-quiet">{t("andMore", { count: user.memberships.length - MOST })}</span>
      )}
    </span>
  );
}
