import { useRef } from "react";
import { useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { fleet } from "../api/fleet";
import type { Share } from "../gen/retinue/manager/v1/fleet_service_pb";
import { Meter, Table, Trouble } from "../parts/basics";
import { Chart } from "../parts/chart";
import { useLoaded } from "../parts/store";
import { amounts } from "../text/format";
import { t } from "../text/language";

const PERIOD = 5;
const KEPT = 720;
const MAX_LINES = 8;

/** Dominant resource shares by owner, now and since the page is open. */
export default function Fairness() {
  const [parameters, setParameters] = useSearchParams();
  const group = parameters.get("group") ?? "default";
  const groups = useLoaded("groups", (signal) =>
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
  );
  const history = useRef(new Map<string, (readonly [number, number])[]>());
  const kept = useRef("");
  if (kept.current !== group) {
    kept.current = group;
    history.current = new Map();
  }
  const found = useLoaded(
    `shares ${group}`,
    async (signal) => {
      const { shares, heldByOthers } = await fleet.listShares({ resourceGroup: group }, { signal });
      const time = Date.now() / 1000;
      for (const share of shares) {
        const points = history.current.get(share.owner) ?? [];
        history.current.set(share.owner, [...points, [time, 100 * weighted(share)] as const].slice(-KEPT));
      }
      return { shares, heldByOthers };
    },
    PERIOD,
  );
  const shares = (found.value?.shares ?? []).toSorted((one, other) => weighted(other) - weighted(one));
  return (
    <>
      <div className="bar-top">
        <h1>{t("fairness")}</h1>
        <label>
          {t("group")}{" "}
          <select value={group} onChange={(event) => setParameters({ group: event.target.value })}>
            {(groups.value ?? []).map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      <Trouble problem={found.problem} retry={found.reload} />
      {shares.length === 0 && <p className="note">{t("noData")}</p>}
      <Table
        label={t("fairness")}
        head={[t("owner"), t("weight"), t("share"), t("weighted"), t("slot"), t("held")]}
        rows={shares.map((share) => ({
          key: share.owner,
          cells: [
            share.owner,
            String(share.weight),
            <Meter key="share" used={portion(share)} limit={1} words={`${(100 * portion(share)).toFixed(1)} %`} />,
            `${(100 * weighted(share)).toFixed(1)} %`,
            share.dominantSlot,
            amounts(share.held),
          ],
        }))}
      />
      <h2>{t("sharesHere")}</h2>
      <Chart
        title={t("share")}
        unit=" %"
        series={shares
          .slice(0, MAX_LINES)
          .map(({ owner }) => ({ name: owner, points: history.current.get(owner) ?? [] }))}
      />
    </>
  );
}

/** The part of its dominant slot that an owner holds. */
function portion(share: Share): number {
  return share.denominator > 0n ? Number(share.numerator) / Number(share.denominator) : 0;
}

/** What the scheduler compares: who has the least is next. */
function weighted(share: Share): number {
  return portion(share) / Math.max(1, share.weight);
}
