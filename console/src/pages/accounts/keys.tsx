import { Key, Plus } from "lucide-react";
import { useState } from "react";
import { accounts } from "../../api/client";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { ConfirmDialog } from "../../design/dialog";
import { TextArea, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import type { SshKey } from "../../gen/retinue/manager/v1/account_service_pb";
import { Trouble } from "../../parts/basics";
import { FormDialog } from "../../parts/form_dialog";
import { t } from "../../text/administration";
import { moment } from "../../text/format";
import { useKeys } from "./load";

/** The SSH keys of a user; only users themselves register one. */
export function Keys({ user, own }: { user: string; own: boolean }) {
  const found = useKeys(user);
  const [adding, setAdding] = useState(false);
  const [deleting, setDeleting] = useState<SshKey>();
  const name = (key: SshKey) => key.description || key.fingerprint;
  return (
    <Card
      title={t("sshKeys")}
      flush
      actions={
        own && (
          <Button size="small" icon={<Plus size={15} aria-hidden="true" />} onClick={() => setAdding(true)}>
            {t("addKey")}
          </Button>
        )
      }
    >
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && !found.problem && <Skeleton className="p-4" />}
      {found.value !== undefined && (
        <Table
          label={t("sshKeys")}
          empty={
            <Empty icon={<Key size={28} aria-hidden="true" />} title={t("noKeys")}>
              {t("noKeysHelp")}
            </Empty>
          }
          head={[t("description"), t("fingerprint"), t("created"), t("actions")]}
          rows={found.value.map((key) => ({
            key: key.fingerprint,
            cells: [
              key.description,
              <code key="fingerprint" className="block max-w-80 truncate" title={key.publicKey}>
                {key.fingerprint}
              </code>,
              moment(key.createTime),
              <Button key="delete" size="small" look="danger" onClick={() => setDeleting(key)}>
                {t("delete")}
                <span className="sr-only"> {name(key)}</span>
              </Button>,
            ],
          }))}
        />
      )}
      {adding && <AddKey onClose={() => setAdding(false)} onDone={found.reload} />}
      {deleting && (
        <ConfirmDialog
          title={t("deleteKeyQuestion", { name: name(deleting) })}
          action={t("delete")}
          onClose={() => setDeleting(undefined)}
          onConfirm={async () => {
            await accounts.deleteSshKey({ fingerprint: deleting.fingerprint });
            found.reload();
            notify(t("keyDeleted", { name: name(deleting) }));
          }}
        >
          <p>{t("deleteKeyMeans")}</p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

function AddKey({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [publicKey, setPublicKey] = useState("");
  const [description, setDescription] = useState("");
  const add = async () => {
    const { key } = await accounts.createSshKey({ publicKey: publicKey.trim(), description });
    onDone();
    notify(t("keyAdded", { name: key?.description || key?.fingerprint || "" }));
  };
  return (
    <FormDialog title={t("addKey")} action={t("addKey")} onSubmit={add} onClose={onClose}>
      {(error) => (
        <>
          <TextArea
            label={t("publicKey")}
            help={t("publicKeyHelp")}
            rows={4}
            mono
            placeholder="ssh-ed25519 AAAA… name@machine"
            value={publicKey}
            onChange={setPublicKey}
            error={error("public_key")}
          />
          <TextField
            label={t("description")}
            help={t("keyDescriptionHelp")}
            value={description}
            onChange={setDescription}
            error={error("description")}
          />
        </>
      )}
    </FormDialog>
  );
}
