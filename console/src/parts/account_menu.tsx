import { KeyRound, LogOut } from "lucide-react";
import { useContext, useState } from "react";
import { Menu, MenuChoice, MenuItem, MenuLink, MenuSeparator } from "../design/menu";
import { UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { chooseLanguage, type Language, language, t } from "../text/language";
import { AccountButton } from "./account_button";
import { CallerContext } from "./caller";
import { signOut } from "./sign_out";
import { chooseTheme, type Theme, theme } from "./theme";

/** Language, theme, tokens and the way out. It opens as it is loaded. */
export default function AccountMenu() {
  const caller = useContext(CallerContext);
  const [shown, setShown] = useState(theme());
  return (
    <Menu defaultOpen trigger={<AccountButton />}>
      <div className="px-2.5 py-1.5">
        <div className="font-semibold">{caller.name}</div>
        <div className="text-xs text-quiet">{t(caller.role === UserRole.ADMIN ? "administrator" : "ordinaryUser")}</div>
      </div>
      <MenuSeparator />
      <MenuChoice<Language>
        label={t("languageOfPages")}
        value={language()}
        options={[
          { value: "en", label: "English" },
          { value: "ko", label: "한국어" },
        ]}
        onChange={(chosen) => {
          chooseLanguage(chosen);
          location.reload();
        }}
      />
      <MenuSeparator />
      <MenuChoice<Theme>
        label={t("theme")}
        value={shown}
        options={[
          { value: "system", label: t("system_theme") },
          { value: "light", label: t("light") },
          { value: "dark", label: t("dark") },
        ]}
        onChange={(chosen) => {
          chooseTheme(chosen);
          setShown(chosen);
        }}
      />
      <MenuSeparator />
      <MenuLink to="/accounts" icon={<KeyRound size={15} aria-hidden="true" />}>
        {t("tokens")}
      </MenuLink>
      <MenuItem onSelect={() => void signOut()} icon={<LogOut size={15} aria-hidden="true" />}>
        {t("signOut")}
      </MenuItem>
    </Menu>
  );
}
