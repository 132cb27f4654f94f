import { FileCode, Plus, Rocket } from "lucide-react";
import { Link, useSearchParams } from "react-router";
import { allPages } from "../api/client";
import { endpoints } from "../api/endpoints";
import { Badge } from "../design/badge";
import { ButtonLink } from "../design/button";
import { Card } from "../design/card";
import { CopyButton } from "../design/copy";
import { SearchField } from "../design/fields";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Table } from "../design/table";
import type { Endpoint } from "../gen/retinue/manager/v1/endpoint_pb";
import { ConditionMark, Trouble } from "../parts/basics";
import { useLoaded, useNow } from "../parts/store";
import { between } from "../text/format";
import { t } from "../text/language";
import { EndpointMark, isPublic, TrafficBar } from "./endpoint/marks";

const PERIOD = 5;

function matches(endpoint: Endpoint, text: string): boolean {
  const words = [endpoint.spec?.name, endpoint.spec?.project, endpoint.owner, endpoint.hostLabel];
  return words.some((word) => word?.toLowerCase().includes(text.trim().toLowerCase()));
}

/** All endpoints that the caller may read. */
export default function Endpoints() {
  const [parameters, setParameters] = useSearchParams();
  const text = parameters.get("q") ?? "";
  const now = useNow();
  const found = useLoaded(
    "endpoints",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await endpoints.listEndpoints({ pageToken, pageSize: 500 }, { signal });
        return { items: page.endpoints, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  const all = found.value ?? [];
  const shown = all.filter((endpoint) => matches(endpoint, text));
  return (
    <Page
      title={t("endpoints")}
      lead={t("endpointsLead")}
      actions={
        <>
          <ButtonLink to="/endpoints/new?from=file" icon={<FileCode size={16} aria-hidden="true" />}>
            {t("fromFile")}
          </ButtonLink>
          <ButtonLink to="/endpoints/new" look="primary" icon={<Plus size={16} aria-hidden="true" />}>
            {t("newEndpoint")}
          </ButtonLink>
        </>
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && found.problem === undefined && <Skeleton lines={6} />}
      {found.value !== undefined && all.length === 0 && (
        <Card>
          <Empty
            icon={<Rocket size={32} aria-hidden="true" />}
            title={t("noEndpointYet")}
            action={
              <ButtonLink to="/endpoints/new" look="primary">
                {t("newEndpoint")}
              </ButtonLink>
            }
          >
            {t("noEndpointsHelp")}
          </Empty>
        </Card>
      )}
      {all.length > 0 && (
        <Card flush>
          <div className="flex flex-wrap items-center gap-3 border-b border-line p-3">
            <SearchField
              label={t("searchEndpoints")}
              placeholder={t("searchEndpoints")}
              value={text}
              onChange={(q) => setParameters(q === "" ? {} : { q }, { replace: true })}
              className="w-full sm:w-72"
            />
            <span className="text-sm text-quiet">{t("endpointCount", { count: shown.length })}</span>
          </div>
          <Table
            label={t("endpoints")}
            empty={t("nothingMatches")}
            numeric={[t("replicas"), t("age")]}
            head={[t("name"), t("state"), t("replicas"), t("traffic"), t("address"), t("owner"), t("age"), t("why")]}
            rows={shown.map((endpoint) => ({
              key: endpoint.id,
              cells: [
                <span key="name" className="flex flex-col">
                  <Link to={`/endpoints/${endpoint.id}`} className="font-medium text-ink no-underline hover:underline">
                    {endpoint.spec?.name}
                  </Link>
                  <small>{endpoint.spec?.project}</small>
                </span>,
                <span key="state" className="flex items-center gap-1.5">
                  <EndpointMark state={endpoint.state} />
                  <ConditionMark conditions={endpoint.conditions} />
                </span>,
                <span key="replicas" className="whitespace-nowrap">
                  {t("readyOf", { ready: endpoint.readyReplicas, target: endpoint.target })}
                </span>,
                <TrafficBar key="traffic" shares={endpoint.traffic} />,
                <Address key="address" endpoint={endpoint} />,
                endpoint.owner,
                <span key="age" className="whitespace-nowrap">
                  {endpoint.createTime ? between(endpoint.createTime, undefined, now) : ""}
                </span>,
                <span key="why" className="block max-w-72 truncate text-quiet" title={endpoint.targetReason}>
                  {endpoint.targetReason}
                </span>,
              ],
            }))}
          />
        </Card>
      )}
    </Page>
  );
}

function Address({ endpoint }: { endpoint: Endpoint }) {
  if (endpoint.url === "") return <span className="text-quiet">{t("noRouter")}</span>;
  return (
    <span className="flex items-center gap-1.5">
      <code className="max-w-64 truncate" title={endpoint.url}>
        {endpoint.url.replace(/^https?:\/\//, "")}
      </code>
      <CopyButton text={endpoint.url} />
      {isPublic(endpoint) && <Badge>{t("public")}</Badge>}
    </span>
  );
}
