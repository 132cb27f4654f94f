import { useState } from "react";
import { fleet } from "../../api/fleet";
import { Choice } from "../../design/choice";
import { CopyButton } from "../../design/copy";
import { Select, TextField } from "../../design/fields";
import { NodeKind } from "../../gen/retinue/manager/v1/enrollment_service_pb";
import type { CreateJoinTokenResponse } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { UnreadableField } from "../../parts/changes";
import { Facts } from "../../parts/facts";
import { FormDialog } from "../../parts/form_dialog";
import { SecretDialog } from "../../parts/secret_dialog";
import { t } from "../../text/administration";
import { durationOf, durationSeconds } from "../../text/duration";
import { moment } from "../../text/format";

type Kind = "agent" | "router";

/** Makes a token that lets nodes in, and shows it once with the command that uses it. */
export function JoinDialog({ groups, onClose }: { groups: readonly string[]; onClose: () => void }) {
  const [kind, setKind] = useState<Kind>("agent");
  const [group, setGroup] = useState(groups.includes("default") ? "default" : (groups[0] ?? "default"));
  const [id, setId] = useState("");
  const [ttl, setTtl] = useState("15m");
  const [uses, setUses] = useState("1");
  const [made, setMade] = useState<CreateJoinTokenResponse>();
  const create = async () => {
    const seconds = durationSeconds(ttl);
    if (Number.isNaN(seconds)) throw new UnreadableField("ttl", t("noDuration"));
    if (!/^\d+$/.test(uses)) throw new UnreadableField("uses", t("noNumber"));
    setMade(
      await fleet.createJoinToken({
        agent: id.trim(),
        uses: Number(uses),
        kind: kind === "agent" ? NodeKind.AGENT : NodeKind.ROUTER,
        ...(kind === "agent" && { resourceGroup: group }),
        ...(seconds !== undefined && { ttl: durationOf(seconds) }),
      }),
    );
  };
  if (made) return <JoinSecret made={made} kind={kind} id={id.trim()} onClose={onClose} />;
  return (
    <FormDialog
      title={t("addNode")}
      action={t("makeToken")}
      onSubmit={create}
      onClose={onClose}
      onDone={() => undefined}
    >
      {(error) => (
        <>
          <p className="text-quiet">{t("joinTokenMeans")}</p>
          <Choice
            label={t("type")}
            value={kind}
            onChange={setKind}
            options={[
              { value: "agent", label: t("nodeKind") },
              { value: "router", label: t("router") },
            ]}
          />
          {kind === "agent" && (
            <Select
              label={t("group")}
              value={group}
              onChange={setGroup}
              error={error("resource_group")}
              options={groups.map((value) => ({ value, label: value }))}
            />
          )}
          <TextField label={t("nodeId")} help={t("nodeIdHelp")} value={id} onChange={setId} error={error("agent")} />
          <div className="grid gap-4 sm:grid-cols-2">
            <TextField
              label={t("goodFor")}
              help={t("durationHelp")}
              value={ttl}
              onChange={setTtl}
              error={error("ttl")}
            />
            <TextField
              label={t("uses")}
              help={t("usesHelp")}
              inputMode="numeric"
              value={uses}
              onChange={setUses}
              error={error("uses")}
            />
          </div>
        </>
      )}
    </FormDialog>
  );
}

function JoinSecret({
  made,
  kind,
  id,
  onClose,
}: {
  made: CreateJoinTokenResponse;
  kind: Kind;
  id: string;
  onClose: () => void;
}) {
  return (
    <SecretDialog title={t("joinToken")} secret={made.token} onClose={onClose}>
      <Facts
        facts={[
          [
            t("caFingerprint"),
            <span key="ca" className="inline-flex items-start gap-1">
              <code>{made.caFingerprint}</code>
              <CopyButton text={made.caFingerprint} />
            </span>,
          ],
          [t("expires"), moment(made.expireTime)],
        ]}
      />
      <p>{t(kind === "agent" ? "joinCommand" : "joinCommandRouter")}</p>
      <pre className="overflow-auto rounded-md bg-sunken p-3 whitespace-pre-wrap wrap-anywhere">
        {kind === "agent"
          ? `retinue-agent join --id ${id || "ID"} --manager MANAGER:7440 --join-token ${made.token} --ca-fingerprint ${made.caFingerprint}`
          : `retinue-router run --manager MANAGER:7440 --id ${id || "ID"} --join-token ./join-token --ca-fingerprint ${made.caFingerprint}`}
      </pre>
    </SecretDialog>
  );
}
