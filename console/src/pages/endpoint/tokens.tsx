import { timestampDate } from "@bufbuild/protobuf/wkt";
import { KeyRound, Plus } from "lucide-react";
import { useState } from "react";
import { allPages } from "../../api/client";
import { endpoints } from "../../api/endpoints";
import { type Problem, problemOf } from "../../api/problem";
import { Badge } from "../../design/badge";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { Code } from "../../design/code";
import { ConfirmDialog, Dialog } from "../../design/dialog";
import { Select, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import type { EndpointToken } from "../../gen/retinue/manager/v1/endpoint_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded, useNow } from "../../parts/store";
import { moment } from "../../text/format";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { isPublic } from "./marks";

const DAYS = ["1", "7", "30", "90", "365"] as const;

/** Who may send requests: tokens are made, shown once, and revoked. */
export default function Tokens({ endpoint }: PartProps) {
  const now = useNow();
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<EndpointToken>();
  const found = useLoaded(`tokens ${endpoint.id}`, (signal) =>
    allPages(async (pageToken) => {
      const page = await endpoints.listEndpointTokens({ endpoint: endpoint.id, pageToken, pageSize: 500 }, { signal });
      return { items: page.tokens, nextPageToken: page.nextPageToken };
    }),
  );
  const make = (
    <Button look="primary" size="small" icon={<Plus size={15} aria-hidden="true" />} onClick={() => setMaking(true)}>
      {t("newEndpointToken")}
    </Button>
  );
  return (
    <div className="flex flex-col gap-4">
      {isPublic(endpoint) && <p className="text-quiet">{t("publicNeedsNone")}</p>}
      <Trouble problem={found.problem} retry={found.reload} />
      <Card title={t("tokens")} actions={make} flush>
        {found.value === undefined ? (
          <Skeleton className="p-4" />
        ) : (
          <Table
            label={t("tokens")}
            empty={
              <Empty icon={<KeyRound size={28} aria-hidden="true" />} title={t("noEndpointTokens")}>
                {t("noEndpointTokensHelp")}
              </Empty>
            }
            head={[t("tokenLabel"), t("state"), t("user"), t("created"), t("expires"), t("actions")]}
            rows={found.value.map((token) => {
              const over = token.expireTime !== undefined && timestampDate(token.expireTime).getTime() < now;
              return {
                key: token.id,
                cells: [
                  token.label || <span className="text-quiet">{t("withoutLabel")}</span>,
                  <TokenMark key="state" token={token} over={over} />,
                  token.creator,
                  moment(token.createTime),
                  moment(token.expireTime),
                  token.revokeTime || over ? (
                    ""
                  ) : (
                    <Button
                      key="revoke"
                      size="small"
                      look="danger"
                      aria-label={t("revokeToken", { name: token.label || token.id })}
                      onClick={() => setRevoking(token)}
                    >
                      {t("revoke")}…
                    </Button>
                  ),
                ],
              };
            })}
          />
        )}
      </Card>
      {making && (
        <NewToken
          endpoint={endpoint.id}
          onClose={() => {
            setMaking(false);
            found.reload();
          }}
        />
      )}
      {revoking && (
        <ConfirmDialog
          title={t("revokeQuestion", { name: revoking.label || revoking.id })}
          action={t("revoke")}
          onClose={() => setRevoking(undefined)}
          onConfirm={async () => {
            await endpoints.revokeEndpointToken({ endpoint: endpoint.id, tokenId: revoking.id });
            notify(t("tokenIsRevoked"));
            found.reload();
          }}
        >
          <p>{t("revokeWhat")}</p>
        </ConfirmDialog>
      )}
    </div>
  );
}

function TokenMark({ token, over }: { token: EndpointToken; over: boolean }) {
  if (token.revokeTime) return <Badge tone="bad">{t("revokedToken")}</Badge>;
  return over ? <Badge>{t("expiredToken")}</Badge> : <Badge tone="good">{t("validToken")}</Badge>;
}

function NewToken({ endpoint, onClose }: { endpoint: string; onClose: () => void }) {
  const [label, setLabel] = useState("");
  const [days, setDays] = useState<(typeof DAYS)[number]>("90");
  const [secret, setSecret] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const make = async () => {
    setBusy(true);
    try {
      const lifetime = { seconds: BigInt(86_400 * Number(days)) };
      setSecret((await endpoints.createEndpointToken({ endpoint, label: label.trim(), lifetime })).secret);
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  if (secret !== "") {
    return (
      <Dialog
        title={t("tokenMade")}
        onClose={onClose}
        actions={
          <Button look="primary" onClick={onClose}>
            {t("copiedIt")}
          </Button>
        }
      >
        <p>{t("tokenOnce")}</p>
        <Code code={secret} language="text" label={t("token")} wrap className="secret" />
      </Dialog>
    );
  }
  return (
    <Dialog
      title={t("newEndpointToken")}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button look="primary" busy={busy} onClick={() => void make()}>
            {t("makeEndpointToken")}
          </Button>
        </>
      }
    >
      <TextField label={t("tokenLabel")} help={t("tokenLabelHelp")} value={label} onChange={setLabel} />
      <Select
        label={t("validFor")}
        value={days}
        onChange={setDays}
        options={DAYS.map((value) => ({ value, label: t("days", { count: Number(value) }) }))}
      />
      <Trouble problem={problem} />
    </Dialog>
  );
}
