import { useEffect, useState } from "react";
import { Labelled } from "../parts/basics";
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

export function Login() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
    if (ticket === null) return;
    // It is good once; nothing keeps it.
    history.replaceState(null, "", "/login");
    setBusy(true);
    void signIn({ ticket }).then((refusal) => {
      if (refusal === undefined) location.replace("/sessions");
      else setProblem(`${t("ticketUsed")} (${refusal})`);
      setBusy(false);
    });
  }, []);
  return (
    <main className="login">
      <h1>Retinue</h1>
      <form
        onSubmit={async (event) => {
          event.preventDefault();
          const token = String(new FormData(event.currentTarget).get("token") ?? "").trim();
          setBusy(true);
          const refusal = await signIn({ token });
          setBusy(false);
          if (refusal === undefined) location.replace("/sessions");
          else setProblem(refusal);
        }}
      >
        <Labelled label={t("token")} help={t("tokenHelp")}>
          <input name="token" type="password" autoComplete="off" required />
        </Labelled>
        {problem && (
          <p role="alert" className="trouble">
            {problem}
          </p>
        )}
        <button type="submit" className="primary" disabled={busy}>
          {t("signIn")}
        </button>
      </form>
    </main>
  );
}
