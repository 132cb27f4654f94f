import { CircleUser } from "lucide-react";
import { type ComponentProps, useContext } from "react";
import { Button } from "../design/button";
import { t } from "../text/language";
import { CallerContext } from "./caller";

/** Who is signed in. */
export function AccountButton(props: ComponentProps<typeof Button>) {
  const { name } = useContext(CallerContext);
  return (
    <Button
      {...props}
      look="quiet"
      icon={<CircleUser size={18} aria-hidden="true" />}
      aria-label={t("accountOf", { name })}
    >
      <span className="hidden max-w-40 truncate sm:inline" title={name}>
        {name}
      </span>
    </Button>
  );
}
