import { ChevronRight } from "lucide-react";
import { Link } from "react-router";
import { Badge } from "../../design/badge";
import { Card } from "../../design/card";
import { Skeleton } from "../../design/states";
import type { Endpoint } from "../../gen/retinue/manager/v1/endpoint_pb";
import { Trouble } from "../../parts/basics";
import type { Loaded } from "../../parts/store";
import { t } from "../../text/language";

const SHOWN = 6;

/** Endpoints with how many replicas are ready, and which revisions take their traffic. */
export function EndpointCard({ endpoints }: { endpoints: Loaded<readonly Endpoint[]> }) {
  const all = endpoints.value ?? [];
  return (
    <Card
      title={t("endpoints")}
      flush
      actions={
        all.length > SHOWN && (
          <Link
            to="/endpoints"
            className="inline-flex items-center gap-0.5 text-sm text-quiet no-underline hover:text-accent"
          >
            {t("seeAll", { count: all.length })}
            <ChevronRight size={14} aria-hidden="true" />
          </Link>
        )
      }
    >
      <Trouble problem={endpoints.problem} retry={endpoints.reload} />
      {endpoints.value === undefined && !endpoints.problem && <Skeleton className="p-4" />}
      {endpoints.value?.length === 0 && <p className="px-4 py-3 text-quiet">{t("noEndpoints")}</p>}
      <ul>
        {all.slice(0, SHOWN).map((endpoint) => (
          <li key={endpoint.id} className="flex items-center gap-3 border-b border-line px-4 py-2 last:border-0">
            <div className="min-w-0 grow">
              <Link
                to={`/endpoints/${endpoint.id}`}
                title={endpoint.spec?.name}
                className="block truncate font-medium text-ink no-underline hover:text-accent hover:underline"
              >
                {endpoint.spec?.name || endpoint.id}
              </Link>
              <div className="truncate text-sm text-quiet" title={traffic(endpoint)}>
                {traffic(endpoint)}
              </div>
            </div>
            <Badge tone={endpoint.readyReplicas >= endpoint.target ? "good" : "warn"}>
              {t("replicasReady", { ready: endpoint.readyReplicas, target: endpoint.target })}
            </Badge>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function traffic(endpoint: Endpoint): string {
  const shares = endpoint.traffic.filter(({ percent }) => percent > 0);
  if (shares.length === 0) return t("noTraffic");
  return shares.map(({ revision, percent }) => `${t("trafficTo", { revision })}: ${percent} %`).join(" · ");
}
