import { RefreshCw, ScrollText } from "lucide-react";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { Badge, type Tone } from "../../design/badge";
import { Button, IconButton } from "../../design/button";
import { Card } from "../../design/card";
import { Sheet } from "../../design/dialog";
import { Select, TextField } from "../../design/fields";
import { Empty, Skeleton } from "../../design/states";
import { Table } from "../../design/table";
import {
  AccountService,
  AuditCategory,
  AuditPrincipalKind,
  type AuditRecord,
  UserRole,
} from "../../gen/retinue/manager/v1/account_service_pb";
import { FleetService } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { Trouble } from "../../parts/basics";
import { Facts } from "../../parts/facts";
import { type Key, t } from "../../text/administration";
import { moment } from "../../text/format";
import { type AuditQuery, SINCE, shortMethod } from "./filter";
import { useRecords } from "./records";

const CATEGORIES: Record<number, Key> = {
  [AuditCategory.ADMINISTRATION]: "auditAdministration",
  [AuditCategory.ACCOUNT]: "auditAccount",
  [AuditCategory.DENIAL]: "auditDenial",
};

const PRINCIPALS: Record<number, Key> = {
  [AuditPrincipalKind.UNSPECIFIED]: "principalNone",
  [AuditPrincipalKind.USER]: "user",
  [AuditPrincipalKind.AGENT]: "nodeKind",
  [AuditPrincipalKind.ROUTER]: "router",
  [AuditPrincipalKind.HOST]: "principalHost",
};

const READS = /^(Get|List|Verify)/;
const METHODS = [AccountService, FleetService]
  .flatMap(({ methods }) => methods.map(({ name }) => name))
  .filter((name) => !READS.test(name))
  .sort();

function outcome({ code, reason }: AuditRecord): { tone: Tone; words: string } {
  if (code === "OK") return { tone: "good", words: t("auditDone") };
  if (code === "") return { tone: "warn", words: t("auditOpen") };
  return { tone: "bad", words: reason || code };
}

const who = (record: AuditRecord) => record.principal || t(PRINCIPALS[record.principalKind] ?? "principalNone");
const what = (record: AuditRecord) => [record.objectKind.replaceAll("_", " "), record.object].filter(Boolean).join(" ");

/** What administrators did, what was done with accounts, and what was denied: newest first. */
export function Acts() {
  const [parameters, setParameters] = useSearchParams();
  const [shown, setShown] = useState<AuditRecord>();
  const of = (name: keyof AuditQuery) => parameters.get(name) ?? "";
  const query: AuditQuery = {
    who: of("who"),
    category: of("category"),
    method: of("method"),
    object: of("object"),
    outcome: of("outcome"),
    since: of("since"),
  };
  const found = useRecords(query);
  const set = (name: keyof AuditQuery) => (value: string) =>
    setParameters(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === "") after.delete(name);
        else after.set(name, value);
        return after;
      },
      { replace: true },
    );
  const any = Object.values(query).some(Boolean);
  return (
    <>
      <div className="grid grid-cols-2 items-end gap-3 md:grid-cols-3 xl:grid-cols-[repeat(6,minmax(0,1fr))_auto]">
        <TextField label={t("who")} placeholder={t("anybody")} value={query.who} onChange={set("who")} />
        <Select
          label={t("type")}
          value={query.category}
          onChange={set("category")}
          options={[
            { value: "", label: t("all") },
            { value: "AUDIT_CATEGORY_ADMINISTRATION", label: t("auditAdministration") },
            { value: "AUDIT_CATEGORY_ACCOUNT", label: t("auditAccount") },
            { value: "AUDIT_CATEGORY_DENIAL", label: t("auditDenial") },
          ]}
        />
        <Select
          label={t("call")}
          value={query.method}
          onChange={set("method")}
          options={[{ value: "", label: t("all") }, ...METHODS.map((value) => ({ value, label: value }))]}
        />
        <TextField label={t("onWhat")} placeholder={t("anything")} value={query.object} onChange={set("object")} />
        <Select
          label={t("outcome")}
          value={query.outcome}
          onChange={set("outcome")}
          options={[
            { value: "", label: t("all") },
            { value: "done", label: t("auditDone") },
            { value: "refused", label: t("auditRefused") },
          ]}
        />
        <Select
          label={t("time")}
          value={query.since}
          onChange={set("since")}
          options={[
            { value: "", label: t("anyTime") },
            ...Object.keys(SINCE).map((value) => ({ value, label: t("lastTime", { time: value }) })),
          ]}
        />
        <IconButton
          label={t("refresh")}
          look="plain"
          onClick={found.reload}
          className="justify-self-end max-md:col-span-full"
        >
          <RefreshCw size={16} aria-hidden="true" />
        </IconButton>
      </div>
      <Trouble problem={found.problem} retry={found.reload} />
      {found.records === undefined && !found.problem && <Skeleton lines={8} />}
      {found.records !== undefined && (
        <Card flush>
          <Table
            label={t("audit")}
            empty={
              <Empty
                icon={<ScrollText size={32} aria-hidden="true" />}
                title={t(any ? "nothingMatches" : "noRecords")}
                action={
                  any && <Button onClick={() => setParameters({}, { replace: true })}>{t("clearFilters")}</Button>
                }
              />
            }
            head={[t("time"), t("who"), t("call"), t("onWhat"), t("outcome"), t("details")]}
            rows={found.records.map((record) => {
              const { tone, words } = outcome(record);
              return {
                key: record.id,
                cells: [
                  <span key="time" className="whitespace-nowrap tabular-nums">
                    {moment(record.createTime)}
                  </span>,
                  who(record),
                  <code key="call" title={record.method}>
                    {shortMethod(record.method)}
                  </code>,
                  <span key="object" className="block max-w-80 truncate" title={what(record)}>
                    {what(record)}
                  </span>,
                  <span key="outcome" className="inline-flex items-center gap-1.5">
                    <Badge tone={tone} title={record.code}>
                      {words}
                    </Badge>
                    {record.count > 1n && (
                      <span className="text-sm tabular-nums text-quiet">× {String(record.count)}</span>
                    )}
                  </span>,
                  <Button key="details" size="small" look="quiet" onClick={() => setShown(record)}>
                    {t("details")}
                    <span className="sr-only">
                      {" "}
                      {shortMethod(record.method)} {record.object}
                    </span>
                  </Button>,
                ],
              };
            })}
          />
        </Card>
      )}
      {found.more && (
        <Button className="self-center" busy={found.busy} onClick={found.more}>
          {t("loadMore")}
        </Button>
      )}
      {shown && <RecordSheet record={shown} onClose={() => setShown(undefined)} />}
    </>
  );
}

function RecordSheet({ record, onClose }: { record: AuditRecord; onClose: () => void }) {
  const { tone, words } = outcome(record);
  const role =
    record.role === UserRole.ADMIN ? t("administrator") : record.role === UserRole.USER ? t("ordinaryUser") : "";
  return (
    <Sheet title={shortMethod(record.method)} onClose={onClose}>
      <Facts
        facts={[
          [
            t("outcome"),
            <Badge key="outcome" tone={tone}>
              {words}
            </Badge>,
          ],
          [t("grpcStatus"), record.code],
          [t("who"), [who(record), role].filter(Boolean).join(" · ")],
          [t("from"), record.address],
          [t("onWhat"), what(record)],
          [t("askedFor"), record.summary && <code key="summary">{record.summary}</code>],
          [t("type"), t(CATEGORIES[record.category] ?? "auditAdministration")],
          [t("started"), moment(record.createTime)],
          [t("finished"), moment(record.endTime)],
          [t("times"), record.count > 1n ? String(record.count) : ""],
          [t("call"), <code key="method">{record.method}</code>],
          [t("tokenId"), record.tokenId && <code key="token">{record.tokenId}</code>],
          [t("requestId"), record.requestId && <code key="request">{record.requestId}</code>],
          [t("byManager"), record.manager],
        ]}
      />
    </Sheet>
  );
}
