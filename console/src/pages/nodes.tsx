import { Plus, Server } from "lucide-react";
import { useContext, useState } from "react";
import { useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import { Button } from "../design/button";
import { Figure } from "../design/card";
import { Choice } from "../design/choice";
import { SearchField, Select } from "../design/fields";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { type Agent, AgentState } from "../gen/retinue/manager/v1/fleet_service_pb";
import { Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { useLoaded } from "../parts/store";
import { t } from "../text/administration";
import { amountText } from "../text/format";
import { NodeActions } from "./nodes/actions";
import { NodeCards } from "./nodes/cards";
import { NodeDetails } from "./nodes/details";
import { JoinDialog } from "./nodes/join";
import { Routers } from "./nodes/routers";
import { needsAttention, slotsOf, usageOf } from "./nodes/state";
import { HeatMap, NodeTable } from "./nodes/tables";

const PERIOD = 5;
const EVERY_GROUP = "*";

type View = "cards" | "table" | "heat";
type Which = "all" | "attention" | "drained";

/** All nodes: how they are, what is used of them, and what can be done with them. */
export default function Nodes() {
  const { role } = useContext(CallerContext);
  const admin = role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const [joining, setJoining] = useState(false);
  const found = useLoaded(
    "agents",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
        return { items: page.agents, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const groupNames = useLoaded("group names", (signal) =>
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken, pageSize: 500 }, { signal });
      return { items: page.resourceGroups.map(({ name }) => name), nextPageToken: page.nextPageToken };
    }),
  );
  const set = (name: string, value: string) =>
    setParameters(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === "") after.delete(name);
        else after.set(name, value);
        return after;
      },
      { replace: true },
    );
  const all = found.value ?? [];
  const groups = [...new Set([...all.map((agent) => agent.resourceGroup), ...(groupNames.value ?? [])])].sort();
  const group = parameters.get("group") ?? EVERY_GROUP;
  const view = (parameters.get("view") ?? "cards") as View;
  const which = (parameters.get("which") ?? "all") as Which;
  const words = parameters.get("find") ?? "";
  const inGroup = all.filter((agent) => group === EVERY_GROUP || agent.resourceGroup === group);
  const shown = inGroup.filter(
    (agent) =>
      agent.id.includes(words.trim().toLowerCase()) &&
      (which === "all" || (which === "drained" ? agent.drained : needsAttention(agent))),
  );
  const chosen = all.find((agent) => agent.id === parameters.get("node"));
  const name = (agent: Agent) => (
    <Button
      look="link"
      size="small"
      className="-mx-2 max-w-full"
      title={agent.id}
      onClick={() => set("node", agent.id)}
    >
      <span className="truncate">{agent.id}</span>
    </Button>
  );
  const actions = (agent: Agent) => admin && <NodeActions agent={agent} onDone={found.reload} />;
  return (
    <Page
      title={t("nodes")}
      actions={
        admin && (
          <Button look="primary" icon={<Plus size={16} aria-hidden="true" />} onClick={() => setJoining(true)}>
            {t("addNode")}
          </Button>
        )
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined ? (
        !found.problem && <Skeleton lines={8} />
      ) : all.length === 0 ? (
        <Empty
          icon={<Server size={32} aria-hidden="true" />}
          title={t("noNodes")}
          action={
            admin && (
              <Button look="primary" onClick={() => setJoining(true)}>
                {t("addNode")}
              </Button>
            )
          }
        >
          {t("noNodesHelp")}
        </Empty>
      ) : (
        <>
          <Totals agents={inGroup} />
          <div className="flex flex-wrap items-end gap-3">
            <Choice
              label={t("view")}
              value={view}
              onChange={(value) => set("view", value === "cards" ? "" : value)}
              options={[
                { value: "cards", label: t("cards") },
                { value: "table", label: t("table") },
                { value: "heat", label: t("heatMap") },
              ]}
            />
            <Choice
              label={t("state")}
              value={which}
              onChange={(value) => set("which", value === "all" ? "" : value)}
              options={[
                { value: "all", label: t("all") },
                { value: "attention", label: t("needAttention") },
                { value: "drained", label: t("drainedNodes") },
              ]}
            />
            {groups.length > 1 && (
              <Select
                label={t("group")}
                labelHidden
                className="w-48"
                value={group}
                onChange={(value) => set("group", value === EVERY_GROUP ? "" : value)}
                options={[
                  { value: EVERY_GROUP, label: t("everyGroup") },
                  ...groups.map((value) => ({ value, label: value })),
                ]}
              />
            )}
            <SearchField
              label={t("findNode")}
              placeholder={t("findNode")}
              className="w-56 max-sm:w-full"
              value={words}
              onChange={(value) => set("find", value)}
            />
          </div>
          {shown.length === 0 ? (
            <Empty title={t("nothingMatches")} />
          ) : view === "table" ? (
            <NodeTable agents={shown} name={name} actions={actions} />
          ) : view === "heat" ? (
            <HeatMap agents={shown} name={name} />
          ) : (
            <NodeCards agents={shown} name={name} actions={actions} />
          )}
        </>
      )}
      {admin && <Routers />}
      {chosen && <NodeDetails agent={chosen} admin={admin} onClose={() => set("node", "")} onDone={found.reload} />}
      {joining && <JoinDialog groups={groups.length > 0 ? groups : ["default"]} onClose={() => setJoining(false)} />}
    </Page>
  );
}

/** What all of them have together. */
function Totals({ agents }: { agents: readonly Agent[] }) {
  const ready = agents.filter((agent) => agent.state === AgentState.ALIVE && !agent.drained).length;
  const kernels = agents.reduce((sum, agent) => sum + (agent.kernels ?? 0), 0);
  return (
    <div className="grid grid-cols-2 gap-3 sm:grid-cols-[repeat(auto-fit,minmax(11rem,1fr))]">
      <Figure
        label={t("nodesTakeSessions")}
        value={t("ofAll", { count: ready, all: agents.length })}
        note={t("kernelsOf", { count: kernels })}
      />
      {slotsOf(agents).map((slot) => {
        const { used, all } = usageOf(agents, slot);
        return (
          <Figure
            key={slot}
            label={slot}
            value={all > 0 ? `${Math.round((100 * used) / all)} %` : "–"}
            note={t("usedOf", { used: amountText(slot, used), all: amountText(slot, all) })}
          />
        );
      })}
    </div>
  );
}
