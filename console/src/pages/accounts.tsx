import { useContext, useState } from "react";
import { accounts, allPages } from "../api/client";
import { type Problem, problemOf } from "../api/problem";
import { ProjectRole, UserRole } from "../gen/retinue/manager/v1/account_service_pb";
import { CopyButton, Dialog, Labelled, Table, Trouble } from "../parts/basics";
import { CallerContext } from "../parts/caller";
import { useLoaded } from "../parts/store";
import { moment } from "../text/format";
import { t } from "../text/language";

/** Tokens of the caller; for administrators also the users. */
export default function Accounts() {
  const caller = useContext(CallerContext);
  const admin = caller.role === UserRole.ADMIN;
  const [problem, setProblem] = useState<Problem>();
  const [secret, setSecret] = useState("");
  const tokens = useLoaded("tokens", (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listTokens({ user: caller.name, pageToken }, { signal });
      return { items: page.tokens, nextPageToken: page.nextPageToken };
    }),
  );
  const users = useLoaded(`users ${admin}`, async (signal) => {
    if (!admin) return [];
    return allPages(async (pageToken) => {
      const page = await accounts.listUsers({ pageToken }, { signal });
      return { items: page.users, nextPageToken: page.nextPageToken };
    });
  });
  const attempt = async (act: () => Promise<unknown>) => {
    try {
      await act();
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    tokens.reload();
    users.reload();
  };
  return (
    <>
      <h1>{t("accounts")}</h1>
      <Trouble problem={problem ?? tokens.problem ?? users.problem} />
      <h2>{t("token")}</h2>
      <form
        className="inline"
        onSubmit={(event) => {
          event.preventDefault();
          const form = new FormData(event.currentTarget);
          void attempt(async () => {
            const answer = await accounts.createToken({ description: String(form.get("description") ?? "") });
            setSecret(answer.secret);
          });
        }}
      >
        <Labelled label={t("description")} help={t("tokenEnds")}>
          <input name="description" />
        </Labelled>
        <button type="submit">{t("create")}</button>
      </form>
      <Table
        label={t("token")}
        head={[t("description"), t("created"), t("expires"), t("revoke")]}
        rows={(tokens.value ?? []).map((token) => ({
          key: token.id,
          cells: [
            token.description || token.id,
            moment(token.createTime),
            moment(token.expireTime),
            token.revokeTime ? (
              t("revoked")
            ) : (
              <button
                key="revoke"
                type="button"
                onClick={() => void attempt(() => accounts.revokeToken({ tokenId: token.id }))}
              >
                {t("revoke")}
                <span className="hidden"> {token.description || token.id}</span>
              </button>
            ),
          ],
        }))}
      />
      {admin && (
        <>
          <h2>{t("user")}</h2>
          <form
            className="inline"
            onSubmit={(event) => {
              event.preventDefault();
              const name = String(new FormData(event.currentTarget).get("name") ?? "");
              void attempt(() => accounts.createUser({ user: { name, role: UserRole.USER } }));
            }}
          >
            <Labelled label={t("name")}>
              <input name="name" required />
            </Labelled>
            <button type="submit">{t("create")}</button>
          </form>
          <Table
            label={t("user")}
            head={[t("name"), t("role"), t("project"), t("created")]}
            rows={(users.value ?? []).map((user) => ({
              key: user.name,
              cells: [
                user.name,
                (UserRole[user.role] ?? "").toLowerCase(),
                user.memberships
                  .map(({ project, role }) => (role === ProjectRole.ADMIN ? `${project} ★` : project))
                  .join(" "),
                moment(user.createTime),
              ],
            }))}
          />
        </>
      )}
      {secret && (
        <Dialog title={t("token")} onClose={() => setSecret("")}>
          <p>{t("joinTokenOnce")}</p>
          <pre>{secret}</pre>
          <form method="dialog" className="actions">
            <CopyButton text={secret} />
            <button type="submit">{t("close")}</button>
          </form>
        </Dialog>
      )}
    </>
  );
}
