import { useContext } from "react";
import { useSearchParams } from "react-router";
import { Page } from "../design/page";
import { Tabs } from "../design/tabs";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { CallerContext } from "../parts/caller";
import { t } from "../text/administration";
import { Acts } from "./audit/acts";
import { Journal } from "./audit/journal";

/** Who did what; others than administrators see who entered their sessions. */
export default function Audit() {
  const admin = useContext(CallerContext).role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const selected = admin && parameters.get("tab") !== "sessions" ? "acts" : "sessions";
  return (
    <Page title={t("audit")} lead={t(selected === "acts" ? "actsLead" : "journalLead")}>
      <Tabs
        label={t("audit")}
        items={[
          ...(admin ? [{ id: "acts" as const, label: t("acts") }] : []),
          { id: "sessions", label: t("accessToSessions") },
        ]}
        selected={selected}
        onSelect={(id) => setParameters(id === "acts" ? {} : { tab: id }, { replace: true })}
        panelClassName="gap-4"
      >
        {selected === "acts" ? <Acts /> : <Journal />}
      </Tabs>
    </Page>
  );
}
