import { create, toJson } from "@bufbuild/protobuf";
import { Boxes, Plus } from "lucide-react";
import { type ReactNode, useContext, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import { Button, NameButton } from "../design/button";
import { Card } from "../design/card";
import { Code } from "../design/code";
import { ConfirmDialog, Sheet } from "../design/dialog";
import { notify } from "../design/notify";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Table } from "../design/table";
import { QuotaKind, UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { type ResourceGroup, ResourceGroupSchema } from "../gen/retinue/manager/v1/fleet_service_pb";
import { Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { Facts } from "../parts/facts";
import { useLoaded } from "../parts/store";
import { t } from "../text/administration";
import { moment } from "../text/format";
import { GroupEditor } from "./groups/editor";
import { formOf, groupChanges, word } from "./groups/form";
import { QuotaDialog } from "./quotas/dialog";
import { wholeCluster } from "./quotas/load";

const BLANK = create(ResourceGroupSchema);

type Asked = "edit" | "delete" | "quota" | "new";

/** Resource groups with their policies. */
export default function Groups() {
  const admin = useContext(CallerContext).role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const [asked, setAsked] = useState<Asked>();
  const found = useLoaded("groups", (signal) =>
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken, pageSize: 500 }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
  );
  const nodes = useLoaded("nodes of groups", (signal) =>
    wholeCluster(signal).then((agents) => agents.map(({ resourceGroup }) => resourceGroup)),
  );
  const show = (name: string) => setParameters(name === "" ? {} : { group: name }, { replace: true });
  const chosen = found.value?.find(({ name }) => name === parameters.get("group"));
  const close = () => setAsked(undefined);
  return (
    <Page
      title={t("groups")}
      lead={t("groupsLead")}
      actions={
        admin && (
          <Button look="primary" icon={<Plus size={16} aria-hidden="true" />} onClick={() => setAsked("new")}>
            {t("newGroup")}
          </Button>
        )
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined ? (
        !found.problem && <Skeleton lines={6} />
      ) : (
        <Card flush>
          <Table
            label={t("groups")}
            numeric={[t("nodes")]}
            empty={<Empty icon={<Boxes size={32} aria-hidden="true" />} title={t("nothingMatches")} />}
            head={[t("name"), t("nodes"), t("sessionOrder"), t("nodeOrder"), t("sessionTypes"), t("idlePolicy")]}
            rows={found.value.map((group) => {
              const form = formOf(group);
              return {
                key: group.name,
                cells: [
                  <NameButton key="name" onClick={() => show(group.name)}>
                    {group.name}
                  </NameButton>,
                  nodes.value?.filter((name) => name === group.name).length ?? "",
                  word(form.order),
                  word(form.packing),
                  form.types.map(word).join(", ") || t("all"),
                  form.idle.interaction || form.idle.lifetime || form.idle.window ? t("endsIdle") : t("neverEndsIdle"),
                ],
              };
            })}
          />
        </Card>
      )}
      {asked === "new" && <GroupEditor group={undefined} blank={BLANK} onClose={close} onDone={found.reload} />}
      {chosen && (
        <GroupSheet group={chosen} admin={admin} onAsk={setAsked} onClose={() => show("")}>
          {asked === "edit" && <GroupEditor group={chosen} blank={BLANK} onClose={close} onDone={found.reload} />}
          {asked === "quota" && (
            <QuotaDialog
              owner={{ kind: QuotaKind.RESOURCE_GROUP, name: chosen.name }}
              onClose={close}
              onDone={() => undefined}
            />
          )}
          {asked === "delete" && (
            <ConfirmDialog
              title={t("deleteGroupQuestion", { name: chosen.name })}
              action={t("delete")}
              onClose={close}
              onConfirm={async () => {
                await fleet.deleteResourceGroup({ name: chosen.name, etag: chosen.etag });
                notify(t("groupDeleted", { name: chosen.name }));
                found.reload();
                show("");
              }}
            >
              <p>{t("deleteGroupMeans")}</p>
            </ConfirmDialog>
          )}
        </GroupSheet>
      )}
    </Page>
  );
}

/** All of a group's policies in words: what differs from a group with every default comes first. */
function GroupSheet({
  group,
  admin,
  onAsk,
  onClose,
  children,
}: {
  group: ResourceGroup;
  admin: boolean;
  onAsk: (asked: Asked) => void;
  onClose: () => void;
  /** What asks over it. */
  children: ReactNode;
}) {
  const set = groupChanges(formOf(BLANK), formOf(group));
  return (
    <Sheet title={group.name} onClose={onClose}>
      {admin && (
        <div className="flex flex-wrap gap-2">
          <Button size="small" look="primary" onClick={() => onAsk("edit")}>
            {t("edit")}
          </Button>
          <Button size="small" onClick={() => onAsk("quota")}>
            {t("quota")}…
          </Button>
          <Button size="small" look="danger" onClick={() => onAsk("delete")}>
            {t("delete")}
          </Button>
        </div>
      )}
      <Facts
        facts={[
          [t("sessionOrder"), word(formOf(group).order)],
          [t("nodeOrder"), word(formOf(group).packing)],
          ...set
            .filter(({ label }) => label !== t("sessionOrder") && label !== t("nodeOrder"))
            .map(({ label, after }) => [label, after] as const),
          [t("created"), moment(group.createTime)],
        ]}
      />
      <Link to={`/cluster?group=${group.name}`} className="text-accent">
        {t("nodesOf", { name: group.name })}
      </Link>
      <Code
        language="json"
        label={t("asJson")}
        code={JSON.stringify(toJson(ResourceGroupSchema, group), undefined, 2)}
      />
      {children}
    </Sheet>
  );
}
