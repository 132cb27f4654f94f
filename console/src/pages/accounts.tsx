import { useContext } from "react";
import { useSearchParams } from "react-router";
import { Page } from "../design/page";
import { type TabItem, Tabs } from "../design/tabs";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { CallerContext } from "../parts/caller";
import { t } from "../text/administration";
import { Keys } from "./accounts/keys";
import { Tokens } from "./accounts/tokens";
import { Users } from "./accounts/users";

type Part = "users" | "tokens" | "keys";

/** The caller's tokens and keys; for administrators also all users. */
export default function Accounts() {
  const { name, role } = useContext(CallerContext);
  const admin = role === UserRole.ADMIN;
  const [parameters, setParameters] = useSearchParams();
  const items: TabItem<Part>[] = [
    ...(admin ? [{ id: "users" as const, label: t("users") }] : []),
    { id: "tokens", label: t("myTokens") },
    { id: "keys", label: t("myKeys") },
  ];
  const asked = parameters.get("tab");
  const selected = items.find(({ id }) => id === asked)?.id ?? items[0]?.id ?? "tokens";
  return (
    <Page title={t("accounts")}>
      <Tabs
        label={t("accounts")}
        items={items}
        selected={selected}
        onSelect={(id) => setParameters({ tab: id }, { replace: true })}
        panelClassName="gap-4"
      >
        {selected === "users" && <Users self={name} />}
        {selected === "tokens" && <Tokens user={name} own />}
        {selected === "keys" && <Keys user={name} own />}
      </Tabs>
    </Page>
  );
}
