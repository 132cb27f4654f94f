import { timestampDate } from "@bufbuild/protobuf/wkt";
import { KeyRound, Plus } from "lucide-react";
import { useState } from "react";
import { accounts } from "../../api/client";
import { Badge } from "../../design/badge";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { ConfirmDialog } from "../../design/dialog";
import { Switch, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import type { Token } from "../../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../../parts/basics";
import { FormDialog } from "../../parts/form_dialog";
import { SecretDialog } from "../../parts/secret_dialog";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { spanOf } from "../groups/idle";
import { useTokens } from "./load";

const nameOf = (token: Token) => token.description || token.id.slice(0, 8);

function hasEnded(token: Token): boolean {
  return (
    token.revokeTime !== undefined || (token.expireTime !== undefined && timestampDate(token.expireTime) < new Date())
  );
}

/** The tokens of a user: made, shown once, revoked. */
export function Tokens({ user, own }: { user: string; own: boolean }) {
  const found = useTokens(user);
  const [ended, setEnded] = useState(false);
  const [making, setMaking] = useState(false);
  const [secret, setSecret] = useState("");
  const [revoking, setRevoking] = useState<Token>();
  const shown = (found.value ?? []).filter((token) => ended || !hasEnded(token));
  const withEnded = found.value?.some(hasEnded) ?? false;
  return (
    <Card
      title={t("tokens")}
      flush
      actions={
        <>
          {withEnded && <Switch label={t("endedTokens")} checked={ended} onChange={setEnded} />}
          <Button size="small" icon={<Plus size={15} aria-hidden="true" />} onClick={() => setMaking(true)}>
            {t("newToken")}
          </Button>
        </>
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && !found.problem && <Skeleton className="p-4" />}
      {found.value !== undefined && (
        <Table
          label={t("tokens")}
          empty={
            <Empty icon={<KeyRound size={28} aria-hidden="true" />} title={t("noTokens")}>
              {t("noTokensHelp")}
            </Empty>
          }
          head={[t("description"), t("state"), t("created"), t("expires"), t("actions")]}
          rows={shown.map((token) => ({
            key: token.id,
            cells: [
              <span key="name" className="block max-w-72 truncate" title={nameOf(token)}>
                {nameOf(token)}
              </span>,
              <TokenState key="state" token={token} />,
              moment(token.createTime),
              token.expireTime ? moment(token.expireTime) : t("untilRevoked"),
              !hasEnded(token) && (
                <Button key="revoke" size="small" look="danger" onClick={() => setRevoking(token)}>
                  {t("revoke")}
                  <span className="sr-only"> {nameOf(token)}</span>
                </Button>
              ),
            ],
          }))}
        />
      )}
      {making && (
        <NewToken
          user={user}
          own={own}
          onClose={() => setMaking(false)}
          onMade={(made) => {
            setSecret(made);
            found.reload();
          }}
        />
      )}
      {secret && <SecretDialog title={t("token")} secret={secret} onClose={() => setSecret("")} />}
      {revoking && (
        <ConfirmDialog
          title={t("revokeTokenQuestion", { name: nameOf(revoking) })}
          action={t("revoke")}
          onClose={() => setRevoking(undefined)}
          onConfirm={async () => {
            await accounts.revokeToken({ tokenId: revoking.id });
            found.reload();
            notify(t("tokenRevoked", { name: nameOf(revoking) }));
          }}
        >
          <p>{t("revokeTokenMeans")}</p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

function TokenState({ token }: { token: Token }) {
  if (token.revokeTime) return <Badge title={moment(token.revokeTime)}>{t("revoked")}</Badge>;
  return hasEnded(token) ? <Badge>{t("expired")}</Badge> : <Badge tone="good">{t("valid")}</Badge>;
}

function NewToken({
  user,
  own,
  onClose,
  onMade,
}: {
  user: string;
  own: boolean;
  onClose: () => void;
  onMade: (secret: string) => void;
}) {
  const [description, setDescription] = useState("");
  const [ttl, setTtl] = useState("");
  const create = async () => {
    const { secret } = await accounts.createToken({ user, description, ttl: spanOf("ttl", ttl) });
    onMade(secret);
  };
  return (
    <FormDialog
      title={own ? t("newToken") : t("newTokenFor", { name: user })}
      action={t("create")}
      onSubmit={create}
      onClose={onClose}
    >
      {(error) => (
        <>
          <TextField
            label={t("description")}
            help={t("tokenDescriptionHelp")}
            value={description}
            onChange={setDescription}
            error={error("description")}
          />
          <TextField
            label={t("goodFor")}
            help={own ? t("tokenEnds") : t("goodForHelp")}
            value={ttl}
            onChange={setTtl}
            error={error("ttl")}
          />
        </>
      )}
    </FormDialog>
  );
}
