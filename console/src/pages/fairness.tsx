import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { ChevronDown, ChevronRight, Scale } from "lucide-react";
import { useMemo, useState } from "react";
import { useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import { IconButton } from "../design/button";
import { Card } from "../design/card";
import { Chart } from "../design/chart";
import { Choice } from "../design/choice";
import { Select } from "../design/fields";
import { Meter } from "../design/meter";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Table } from "../design/table";
import { ShareKind } from "../gen/retinue/manager/v1/fleet_service_pb";
import { byProject, portion, shareLines, weighted } from "../live/fairness";
import { Trouble } from "../parts/basics";
import { useLoaded, useSessions } from "../parts/store";
import { amounts } from "../text/format";
import { t } from "../text/language";

const PERIOD = 5;
const MAX_LINES = 8;
const HOUR = 3_600_000;

function percent(part: number): string {
  return `${(100 * part).toFixed(1)} %`;
}

/** Dominant resource shares: who is next and why, who holds how much, and how that came. */
export default function Fairness() {
  const [parameters, setParameters] = useSearchParams();
  const group = parameters.get("group") ?? "default";
  const groups = useLoaded("groups", (signal) =>
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
  );
  const found = useLoaded(
    `shares ${group}`,
    (signal) => fleet.listShares({ resourceGroup: group }, { signal }),
    PERIOD,
  );
  const shares = (found.value?.shares ?? []).toSorted((one, other) => weighted(other) - weighted(one));
  const least = shares.at(-1);
  const most = shares[0];
  return (
    <Page
      title={t("fairness")}
      lead={t("fairnessLead")}
      actions={
        <Select
          label={t("group")}
          labelHidden
          className="w-48"
          value={group}
          onChange={(chosen) => setParameters({ group: chosen }, { replace: true })}
          options={(groups.value ?? []).map(({ name }) => ({ value: name, label: name }))}
        />
      }
    >
      <Trouble problem={found.problem ?? groups.problem} retry={found.reload} />
      {found.value === undefined && found.problem === undefined && <Skeleton lines={6} />}
      {found.value !== undefined && shares.length === 0 && (
        <Card>
          <Empty icon={<Scale size={32} aria-hidden="true" />} title={t("nobodyHolds", { group })}>
            {t("nobodyHoldsHelp")}
          </Empty>
        </Card>
      )}
      {most !== undefined && least !== undefined && (
        <>
          <p className="rounded-md bg-accent-soft px-3 py-2 text-accent">
            {most === least
              ? t("oneHolds", { owner: most.owner, share: percent(portion(most)), slot: most.dominantSlot })
              : t("nextIs", {
                  least: least.owner,
                  most: most.owner,
                  share: percent(weighted(most)),
                })}
          </p>
          <Card title={t("sharesNow")} flush>
            <Shares shares={shares} group={group} />
          </Card>
        </>
      )}
      <History group={group} />
      {found.value && Object.keys(found.value.heldByOthers).length > 0 && (
        <p className="text-quiet">{t("othersHold", { amounts: amounts(found.value.heldByOthers) })}</p>
      )}
    </Page>
  );
}

const RANGES = {
  day: { hours: 24, interval: 1 },
  week: { hours: 168, interval: 1 },
  month: { hours: 744, interval: 6 },
} as const;
type Range = keyof typeof RANGES;
const KINDS = { users: ShareKind.USER, projects: ShareKind.PROJECT, whole: ShareKind.RESOURCE_GROUP } as const;
type Kind = keyof typeof KINDS;

/** Shares as the manager has kept them, hour by hour. */
function History({ group }: { group: string }) {
  const [range, setRange] = useState<Range>("week");
  const [kind, setKind] = useState<Kind>("users");
  const { hours, interval } = RANGES[range];
  const found = useLoaded(
    `histories ${group} ${range}`,
    async (signal) =>
      (
        await fleet.listShareHistories(
          {
            resourceGroup: group,
            startTime: timestampFromMs(Date.now() - hours * HOUR),
            interval: { seconds: BigInt(3600 * interval) },
          },
          { signal },
        )
      ).histories,
    300,
  );
  return (
    <Card
      title={t("sharesOverTime")}
      actions={
        <>
          <Choice
            label={t("sharesOf")}
            value={kind}
            onChange={setKind}
            options={[
              { value: "users", label: t("ofUsers") },
              { value: "projects", label: t("ofProjects") },
              { value: "whole", label: t("ofGroup") },
            ]}
          />
          <Choice
            label={t("howLong")}
            value={range}
            onChange={setRange}
            options={[
              { value: "day", label: t("lastDay") },
              { value: "week", label: t("lastWeek") },
              { value: "month", label: t("lastMonth") },
            ]}
          />
        </>
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && found.problem === undefined && <Skeleton />}
      {found.value && (
        <Chart
          title={t(kind === "users" ? "meanByWeight" : "meanShare")}
          height={220}
          seconds={hours * 3600}
          bound={100}
          write={(value) => `${value.toFixed(1)} %`}
          series={shareLines(found.value, KINDS[kind], 3600 * interval, MAX_LINES, ({ name }) => name || group)}
        />
      )}
    </Card>
  );
}

/** Projects with their users below them, which can be folded. */
function Shares({ shares, group }: { shares: Parameters<typeof byProject>[0]; group: string }) {
  const sessions = useSessions();
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const projects = useMemo(() => byProject(shares, sessions, group), [shares, sessions, group]);
  const fold = (project: string) =>
    setFolded((before) => {
      const after = new Set(before);
      if (!after.delete(project)) after.add(project);
      return after;
    });
  return (
    <Table
      label={t("sharesNow")}
      numeric={[t("weight"), t("weighted")]}
      head={[t("projectOrUser"), t("share"), t("slot"), t("weight"), t("weighted"), t("held")]}
      rows={projects.flatMap((entry) => [
        {
          key: `project ${entry.project}`,
          cells: [
            <span key="name" className="flex items-center gap-1 font-medium">
              <IconButton
                size="small"
                label={t(folded.has(entry.project) ? "unfold" : "fold", {
                  name: entry.project || t("elsewhere"),
                })}
                aria-expanded={!folded.has(entry.project)}
                onClick={() => fold(entry.project)}
              >
                {folded.has(entry.project) ? (
                  <ChevronRight size={15} aria-hidden="true" />
                ) : (
                  <ChevronDown size={15} aria-hidden="true" />
                )}
              </IconButton>
              {entry.project || t("elsewhere")}
            </span>,
            <span key="share" className="block min-w-40">
              <Meter used={entry.portion} limit={1} words={percent(entry.portion)} />
            </span>,
            "",
            "",
            "",
            <span key="held" className="text-quiet">
              {t("userCount", { count: entry.members.length })}
            </span>,
          ],
        },
        ...(folded.has(entry.project) ? [] : entry.members).map(({ share, portion: part }) => ({
          key: `${entry.project}/${share.owner}`,
          cells: [
            <span key="name" className="pl-8">
              {share.owner}
            </span>,
            <span key="share" className="block min-w-40">
              <Meter used={part} limit={1} words={percent(part)} />
            </span>,
            share.dominantSlot,
            String(share.weight),
            percent(weighted(share)),
            <span key="held" className="whitespace-nowrap">
              {amounts(share.held)}
            </span>,
          ],
        })),
      ])}
    />
  );
}
