import { timestampDate } from "@bufbuild/protobuf/wkt";
import { useContext, useState } from "react";
import { useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import { type Problem, problemOf } from "../api/problem";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { type Agent, AgentState, type CreateJoinTokenResponse } from "../gen/retinue/manager/v1/fleet_service_pb";
import { CopyButton, Dialog, Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { useLoaded, useNow } from "../parts/store";
import { amount, amountText, BYTE_SLOTS, moment, span } from "../text/format";
import { t } from "../text/language";

const PERIOD = 5;
const MAX_CELLS = 64;
const LATE_SECONDS = 30;

/** All agents, and of a slot what each has and gives. */
export default function Cluster() {
  const { role } = useContext(CallerContext);
  const admin = role === UserRole.ADMIN;
  const now = useNow();
  const [parameters, setParameters] = useSearchParams();
  const [problem, setProblem] = useState<Problem>();
  const [joining, setJoining] = useState<CreateJoinTokenResponse>();
  const found = useLoaded(
    "agents",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
        return { items: page.agents, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const all = found.value ?? [];
  const groups = [...new Set(all.map((agent) => agent.resourceGroup))].sort();
  const group = parameters.get("group") ?? "";
  const agents = all.filter((agent) => group === "" || agent.resourceGroup === group);
  const slots = [...new Set(agents.flatMap((agent) => Object.keys(agent.capacity)))].sort();
  const slot = parameters.get("slot") ?? (slots.includes("cpu") ? "cpu" : (slots[0] ?? "cpu"));
  const set = (name: string, value: string) =>
    setParameters((before) => {
      const after = new URLSearchParams(before);
      if (value === "") after.delete(name);
      else after.set(name, value);
      return after;
    });
  const attempt = async (act: () => Promise<unknown>) => {
    try {
      await act();
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    found.reload();
  };
  return (
    <>
      <div className="bar-top">
        <h1>{t("cluster")}</h1>
        <label>
          {t("group")}{" "}
          <select value={group} onChange={(event) => set("group", event.target.value)}>
            <option value="">{t("all")}</option>
            {groups.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          {t("slot")}{" "}
          <select value={slot} onChange={(event) => set("slot", event.target.value)}>
            {slots.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <span className="grow" />
        {admin && (
          <button
            type="button"
            onClick={() =>
              void attempt(async () => {
                setJoining(await fleet.createJoinToken({ resourceGroup: group || "default" }));
              })
            }
          >
            {t("joinToken")}…
          </button>
        )}
      </div>
      <Trouble problem={problem ?? found.problem} />
      <ul className="agents">
        {agents.map((agent) => (
          <li key={agent.id} className={agent.state === AgentState.ALIVE ? "" : "away"}>
            <h2>{agent.id}</h2>
            <p>
              {(AgentState[agent.state] ?? "").toLowerCase()}
              {agent.drained && ` · ${t("drained")}`}
              {agent.kernels !== undefined && ` · ${agent.kernels} ${t("kernels")}`}
              {heard(agent, now)}
            </p>
            <Cells agent={agent} slot={slot} />
            {agent.conditions.map((condition) => (
              <p key={condition.type + condition.reason} className="trouble">
                {condition.message}
              </p>
            ))}
            <p className="note">
              {agent.architecture} ·{" "}
              {agent.runtimes
                .filter((runtime) => runtime.available)
                .map(({ name }) => name)
                .join(" ")}{" "}
              · {agent.version}
            </p>
            {admin && (
              <button
                type="button"
                onClick={() =>
                  void attempt(() =>
                    agent.drained ? fleet.undrainAgent({ agent: agent.id }) : fleet.drainAgent({ agent: agent.id }),
                  )
                }
              >
                {t(agent.drained ? "undrain" : "drain")}
                <span className="hidden"> {agent.id}</span>
              </button>
            )}
          </li>
        ))}
      </ul>
      {joining && (
        <Dialog title={t("joinToken")} onClose={() => setJoining(undefined)}>
          <p>{t("joinTokenOnce")}</p>
          <pre>{joining.token}</pre>
          <p>
            CA <code>{joining.caFingerprint}</code> · {t("expires")} {moment(joining.expireTime)}
          </p>
          <form method="dialog" className="actions">
            <CopyButton text={joining.token} />
            <button type="submit">{t("close")}</button>
          </form>
        </Dialog>
      )}
    </>
  );
}

function heard(agent: Agent, now: number): string {
  if (agent.heartbeatTime === undefined) return "";
  const seconds = (now - timestampDate(agent.heartbeatTime).getTime()) / 1000;
  return seconds > LATE_SECONDS ? ` · ⚠ ${t("lastHeard", { time: span(seconds) })}` : "";
}

/** A cell for each unit of a slot, or for each part of one that there is much of. */
function Cells({ agent, slot }: { agent: Agent; slot: string }) {
  const all = amount(agent.capacity[slot] ?? "0");
  const used = amount(agent.occupied[slot] ?? "0");
  if (!(all > 0)) return <p className="note">–</p>;
  const count = BYTE_SLOTS.has(slot) || all > MAX_CELLS ? 16 : Math.max(1, Math.round(all));
  const full = (used / all) * count;
  return (
    <div className="heat">
      <span className="cells" aria-hidden="true">
        {Array.from({ length: count }, (_, index) => (
          <span
            className="unit"
            // biome-ignore lint/suspicious/noArrayIndexKey: cells have no other name
            key={index}
            style={{ "--share": `${Math.round(100 * Math.min(1, Math.max(0, full - index)))}%` } as React.CSSProperties}
          />
        ))}
      </span>{" "}
      {slot} {amountText(slot, used)} {t("used")} / {amountText(slot, all)} {t("limit")}
    </div>
  );
}
