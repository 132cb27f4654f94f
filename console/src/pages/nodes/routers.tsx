import { useState } from "react";
import { allPages } from "../../api/client";
import { fleet } from "../../api/fleet";
import { Badge } from "../../design/badge";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { ConfirmDialog } from "../../design/dialog";
import { notify } from "../../design/notify";
import { Table } from "../../design/table";
import { type Router, RouterState } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { routerMark } from "./state";

const PERIOD = 10;

/** The routers, for administrators; nothing where there are none. */
export function Routers() {
  const [revoking, setRevoking] = useState<Router>();
  const found = useLoaded(
    "routers",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await fleet.listRouters({ pageToken, pageSize: 500 }, { signal });
        return { items: page.routers, nextPageToken: page.nextPageToken };
      }),
    PERIOD,
  );
  if (found.problem) return <Trouble problem={found.problem} retry={found.reload} />;
  if (!found.value?.length) return null;
  return (
    <Card title={t("routers")} flush>
      <Table
        label={t("routers")}
        head={[t("name"), t("state"), t("baseAddress"), t("lastHeardAt"), t("version"), t("actions")]}
        rows={found.value.map((router) => {
          const { key, tone } = routerMark(router.state);
          return {
            key: router.id,
            cells: [
              router.id,
              <Badge key="state" tone={tone}>
                {t(key)}
              </Badge>,
              router.url || router.address,
              moment(router.heartbeatTime),
              <span key="version" className="block max-w-40 truncate text-quiet" title={router.version}>
                {router.version}
              </span>,
              router.state !== RouterState.REVOKED && (
                <Button key="revoke" size="small" look="danger" onClick={() => setRevoking(router)}>
                  {t("revoke")}
                  <span className="sr-only"> {router.id}</span>
                </Button>
              ),
            ],
          };
        })}
      />
      {revoking && (
        <ConfirmDialog
          title={t("revokeRouterQuestion", { name: revoking.id })}
          action={t("revoke")}
          onClose={() => setRevoking(undefined)}
          onConfirm={async () => {
            await fleet.revokeRouter({ router: revoking.id });
            notify(t("routerWasRevoked", { name: revoking.id }));
            found.reload();
          }}
        >
          <p>{t("revokeRouterMeans")}</p>
        </ConfirmDialog>
      )}
    </Card>
  );
}
