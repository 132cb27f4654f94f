import { useEffect, useState } from "react";
import { Button } from "../design/button";
import { TextField } from "../design/fields";
import { t } from "../text/language";

interface Refusal {
  message: string;
}

async function signIn(body: { token: string } | { ticket: string }): Promise<string | undefined> {
  const answer = await fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (answer.ok) return undefined;
  const refusal = (await answer.json().catch(() => ({}))) as Partial<Refusal>;
  return refusal.message ?? `${answer.status} ${answer.statusText}`;
}

export default function Login() {
  const [problem, setProblem] = useState("");
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
    if (ticket === null) return;
    // It is good once; nothing keeps it.
    history.replaceState(null, "", "/login");
    setBusy(true);
    void signIn({ ticket }).then((refusal) => {
      if (refusal === undefined) location.replace("/home");
      else setProblem(`${t("ticketUsed")} (${refusal})`);
      setBusy(false);
    });
  }, []);
  return (
    <main className="flex min-h-full flex-col items-center justify-center bg-page p-4">
      <div className="flex w-full max-w-sm flex-col gap-4 rounded-lg border border-line bg-card p-6 shadow-pop">
        <h1>Retinue</h1>
        <form
          className="flex flex-col gap-4"
          onSubmit={async (event) => {
            event.preventDefault();
            setBusy(true);
            const refusal = await signIn({ token: token.trim() });
            setBusy(false);
            if (refusal === undefined) location.replace("/home");
            else setProblem(refusal);
          }}
        >
          <TextField
            label={t("token")}
            help={t("tokenHelp")}
            error={problem || undefined}
            type="password"
            value={token}
            onChange={setToken}
            required
          />
          <Button type="submit" look="primary" size="large" busy={busy}>
            {t("signIn")}
          </Button>
        </form>
      </div>
    </main>
  );
}
