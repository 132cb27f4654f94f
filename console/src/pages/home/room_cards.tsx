import { accounts, allPages } from "../../api/client";
import { Card } from "../../design/card";
import { Meter } from "../../design/meter";
import { Skeleton } from "../../design/states";
import { type Quota, QuotaKind } from "../../gen/retinue/manager/v1/account_service_pb";
import { type Agent, AgentState } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { room } from "../../live/summary";
import { Trouble } from "../../parts/basics";
import { type Loaded, useLoaded } from "../../parts/store";
import { amount, amountText } from "../../text/format";
import { t } from "../../text/language";

const PERIOD = 10;
const TITLES: Partial<Record<QuotaKind, "quotaUser" | "quotaProject" | "quotaGroup">> = {
  [QuotaKind.USER]: "quotaUser",
  [QuotaKind.PROJECT]: "quotaProject",
  [QuotaKind.RESOURCE_GROUP]: "quotaGroup",
};

/** What the quotas that count for the caller leave, as bars with words. */
export function QuotaCard({ caller, projects }: { caller: string; projects: readonly string[] }) {
  const found = useLoaded(
    "quotas",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await accounts.listQuotas({ pageToken, pageSize: 500 }, { signal });
        return { items: page.quotas, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  // An administrator gets those of all.
  const own = found.value?.filter(
    ({ kind, name }) =>
      kind === QuotaKind.RESOURCE_GROUP ||
      (kind === QuotaKind.USER && name === caller) ||
      (kind === QuotaKind.PROJECT && projects.includes(name)),
  );
  return (
    <Card title={t("quotasOfMine")}>
      <Trouble problem={found.problem} retry={found.reload} />
      {own === undefined && !found.problem && <Skeleton />}
      {own?.length === 0 && <p className="text-quiet">{t("noQuota")}</p>}
      <div className="flex flex-col gap-4">
        {own?.map((quota) => (
          <OneQuota key={`${quota.kind} ${quota.name}`} quota={quota} />
        ))}
      </div>
    </Card>
  );
}

function OneQuota({ quota }: { quota: Quota }) {
  const { kind, name, usage, maxSessions, maxPendingSessions } = quota;
  const counts = [
    { label: t("placedSessions"), used: usage?.sessions ?? 0, limit: maxSessions },
    { label: t("waitingSessions"), used: usage?.pendingSessions ?? 0, limit: maxPendingSessions },
  ];
  return (
    <div className="flex flex-col gap-2">
      <h3 className="text-sm">{t(TITLES[kind] ?? "quotaUser", { name })}</h3>
      {Object.entries(quota.slots).map(([slot, text]) => (
        <RoomMeter
          key={slot}
          label={slot}
          words="leftOf"
          used={amount(usage?.slots[slot] ?? "0")}
          all={amount(text)}
          write={(value) => amountText(slot, value)}
        />
      ))}
      {counts.map(
        ({ label, used, limit }) =>
          limit !== undefined && (
            <RoomMeter key={label} label={label} words="leftOf" used={used} all={limit} write={String} />
          ),
      )}
    </div>
  );
}

function RoomMeter({
  label,
  words,
  used,
  all,
  write,
}: {
  label: string;
  words: "leftOf" | "freeOf";
  used: number;
  all: number;
  write: (value: number) => string;
}) {
  return (
    <Meter
      label={label}
      used={used}
      limit={all}
      words={t(words, { free: write(Math.max(0, all - used)), all: write(all) })}
    />
  );
}

/** What is free on nodes that take sessions, by resource group. */
export function ClusterCard({ nodes }: { nodes: Loaded<readonly Agent[]> }) {
  const open = nodes.value?.filter((node) => node.state === AgentState.ALIVE && !node.drained) ?? [];
  const groups = [...new Set(open.map((node) => node.resourceGroup))].sort();
  return (
    <Card title={t("freeInCluster")}>
      <Trouble problem={nodes.problem} retry={nodes.reload} />
      {nodes.value === undefined && !nodes.problem && <Skeleton />}
      {nodes.value?.length === 0 && <p className="text-quiet">{t("noNodesYet")}</p>}
      <div className="flex flex-col gap-4">
        {groups.map((group) => (
          <div key={group} className="flex flex-col gap-2">
            {groups.length > 1 && <h3 className="text-sm">{group}</h3>}
            {room(open.filter((node) => node.resourceGroup === group)).map(({ slot, used, all }) => (
              <RoomMeter
                key={slot}
                label={slot}
                words="freeOf"
                used={used}
                all={all}
                write={(value) => amountText(slot, value)}
              />
            ))}
          </div>
        ))}
      </div>
    </Card>
  );
}
