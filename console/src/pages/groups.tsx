import { toJson } from "@bufbuild/protobuf";
import { useState } from "react";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import { type MountRoot, type ResourceGroup, ResourceGroupSchema } from "../gen/retinue/manager/v1/fleet_service_pb";
import { SessionType } from "../gen/retinue/manager/v1/session_pb";
import { Isolation } from "../gen/retinue/types/v1/isolation_pb";
import { CopyButton, Dialog, Table, Trouble } from "../parts/basics";
import { useLoaded } from "../parts/store";
import { t } from "../text/language";

function mountRoot(root: MountRoot): string {
  const { owner } = root;
  const words = root.writable ? ["rw"] : [];
  if (owner) words.push(owner.account ? "uid=account" : `uid=${owner.uid}`);
  if (owner?.gid) words.push(`gid=${owner.gid}`);
  return words.length ? `${root.path}:${words.join(",")}` : root.path;
}

export default function Groups() {
  const [shown, setShown] = useState<ResourceGroup>();
  const found = useLoaded("groups", (signal) =>
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
  );
  const json = shown ? JSON.stringify(toJson(ResourceGroupSchema, shown), undefined, 2) : "";
  return (
    <>
      <h1>{t("groups")}</h1>
      <Trouble problem={found.problem} retry={found.reload} />
      <Table
        label={t("groups")}
        head={[t("name"), t("fairness"), t("agent"), t("type"), t("isolation"), t("mounts")]}
        rows={(found.value ?? []).map((group) => ({
          key: group.name,
          cells: [
            <button key="name" type="button" className="plain" onClick={() => setShown(group)}>
              {group.name}
            </button>,
            group.schedulingPolicy?.sessionStrategy?.strategy.case ?? "",
            group.schedulingPolicy?.agentStrategy?.strategy.case ?? "",
            group.sessionTypes.map((type) => (SessionType[type] ?? "").toLowerCase()).join(" ") || t("all"),
            group.isolations.map((isolation) => (Isolation[isolation] ?? "").toLowerCase()).join(" ") || t("all"),
            group.mountRoots.map(mountRoot).join(" "),
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
