import { Ellipsis, ExternalLink, Pencil, Trash2, Undo2 } from "lucide-react";
import { Suspense, useState } from "react";
import { useNavigate, useParams } from "react-router";
import { endpoints } from "../api/endpoints";
import { Badge } from "../design/badge";
import { ButtonLink, IconButton } from "../design/button";
import { CopyButton } from "../design/copy";
import { ConfirmDialog } from "../design/dialog";
import { Menu, MenuItem, MenuLink, MenuSeparator } from "../design/menu";
import { notify } from "../design/notify";
import { Page } from "../design/page";
import { Skeleton } from "../design/states";
import { Tabs } from "../design/tabs";
import type { Endpoint } from "../gen/retinue/manager/v1/endpoint_pb";
import type { ExplainEndpointResponse } from "../gen/retinue/manager/v1/endpoint_service_pb";
import { isRunning } from "../live/rollout";
import { Conditions, Trouble } from "../parts/basics";
import { lazy } from "../parts/lazy";
import { useLoaded } from "../parts/store";
import { type Key, t } from "../text/language";
import { EndpointMark, isPublic } from "./endpoint/marks";
import { type Stats, useStats } from "./endpoint/stats";

const PERIOD = 3;

const PARTS = {
  overview: lazy(() => import("./endpoint/overview")),
  revisions: lazy(() => import("./endpoint/revisions")),
  scaling: lazy(() => import("./endpoint/scaling")),
  try: lazy(() => import("./endpoint/try")),
  logs: lazy(() => import("./endpoint/logs")),
  tokens: lazy(() => import("./endpoint/tokens")),
  edit: lazy(() => import("./endpoint/edit")),
} as const;
type Part = keyof typeof PARTS;
const WORDS: Record<Part, Key> = {
  overview: "overview",
  revisions: "revisionsAndTraffic",
  scaling: "scaling",
  try: "tryIt",
  logs: "logs",
  tokens: "tokens",
  edit: "editEndpoint",
};
const ORDER = Object.keys(PARTS) as Part[];

/** What every part of the page gets. */
export interface PartProps {
  endpoint: Endpoint;
  answer: ExplainEndpointResponse;
  stats: Stats;
  reload: () => void;
}

/** One endpoint: asked for again every few seconds, its numbers as they are measured. */
export default function EndpointPage() {
  const { id = "", tab } = useParams();
  const navigate = useNavigate();
  const [asking, setAsking] = useState<"delete" | "back">();
  const found = useLoaded(
    `endpoint ${id}`,
    (signal) => endpoints.explainEndpoint({ endpoint: id }, { signal }),
    PERIOD,
  );
  const stats = useStats(id);
  const crumbs = [{ label: t("endpoints"), to: "/endpoints" }];
  const answer = found.value;
  const endpoint = answer?.endpoint;
  if (answer === undefined || endpoint === undefined) {
    return (
      <Page title={t("endpoint")} crumbs={crumbs}>
        <Trouble problem={found.problem} retry={found.reload} />
        {found.problem === undefined && <Skeleton lines={8} />}
      </Page>
    );
  }
  const part = ORDER.find((known) => known === tab) ?? "overview";
  const Shown = PARTS[part];
  const name = endpoint.spec?.name ?? endpoint.id;
  return (
    <Page
      title={name}
      crumbs={crumbs}
      beside={
        <>
          <EndpointMark state={endpoint.state} />
          {isPublic(endpoint) && <Badge>{t("public")}</Badge>}
          <span className="text-sm text-quiet">
            {endpoint.spec?.project} · {endpoint.owner}
          </span>
        </>
      }
      lead={
        endpoint.url === "" ? (
          t("noRouterHelp")
        ) : (
          <span className="flex min-w-0 items-center gap-1.5">
            <code className="truncate" title={endpoint.url}>
              {endpoint.url}
            </code>
            <CopyButton text={endpoint.url} />
            {isPublic(endpoint) && (
              <a
                href={endpoint.url}
                target="_blank"
                rel="noreferrer"
                className="inline-flex items-center gap-1 text-sm"
              >
                <ExternalLink size={14} aria-hidden="true" />
                {t("open")}
              </a>
            )}
          </span>
        )
      }
      actions={
        <>
          <ButtonLink to={`/endpoints/${id}/edit`} icon={<Pencil size={15} aria-hidden="true" />}>
            {t("editEndpoint")}
          </ButtonLink>
          <Menu
            trigger={
              <IconButton label={t("endpointActions")} look="plain">
                <Ellipsis size={16} aria-hidden="true" />
              </IconButton>
            }
          >
            <MenuLink to={`/endpoints/${id}/revisions`}>{t("revisionsAndTraffic")}</MenuLink>
            <MenuItem icon={<Undo2 size={15} aria-hidden="true" />} onSelect={() => setAsking("back")}>
              {t("rollBack")}…
            </MenuItem>
            <MenuSeparator />
            <MenuItem danger icon={<Trash2 size={15} aria-hidden="true" />} onSelect={() => setAsking("delete")}>
              {t("deleteEndpoint")}…
            </MenuItem>
          </Menu>
        </>
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      <Conditions conditions={endpoint.conditions} />
      <Tabs
        label={t("endpoint")}
        items={ORDER.map((each) => ({ id: each, label: t(WORDS[each]) }))}
        selected={part}
        onSelect={(each) => navigate(`/endpoints/${id}/${each}`, { replace: true })}
      >
        <Suspense fallback={<Skeleton lines={6} />}>
          <Shown endpoint={endpoint} answer={answer} stats={stats} reload={found.reload} />
        </Suspense>
      </Tabs>
      {asking === "back" && (
        <ConfirmDialog
          title={t("rollBackQuestion", { name })}
          action={t("rollBack")}
          onClose={() => setAsking(undefined)}
          onConfirm={async () => {
            await endpoints.rollBackEndpoint({ endpoint: endpoint.id, etag: endpoint.etag });
            notify(t("rollBackBegun"));
            found.reload();
            navigate(`/endpoints/${id}/revisions`);
          }}
        >
          <p>
            {isRunning(endpoint.rollout)
              ? t("abortWhat", { from: endpoint.rollout.fromRevision, to: endpoint.rollout.toRevision })
              : t("rollBackWhat")}
          </p>
        </ConfirmDialog>
      )}
      {asking === "delete" && (
        <ConfirmDialog
          title={t("deleteQuestion", { name })}
          action={t("deleteEndpoint")}
          onClose={() => setAsking(undefined)}
          onConfirm={async () => {
            await endpoints.deleteEndpoint({ endpoint: endpoint.id });
            notify(t("endpointEnds", { name }));
            navigate("/endpoints");
          }}
        >
          <p>{t("deleteWhat", { count: answer.replicas.length, url: endpoint.url || endpoint.hostLabel })}</p>
        </ConfirmDialog>
      )}
    </Page>
  );
}
