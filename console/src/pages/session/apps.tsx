import { useState } from "react";
import { apps } from "../../api/apps";
import { kernels } from "../../api/kernels";
import { type Problem, problemOf } from "../../api/problem";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { AppState } from "../../gen/retinue/types/v1/app_pb";
import { Table, Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { t } from "../../text/language";

interface Port {
  name: string;
  protocol: string;
  numbers: number[];
  app: boolean;
}

/** Ports of main1, by name, and the apps that are started for them. */
export default function Apps({ session }: { session: Session }) {
  const [problem, setProblem] = useState<Problem>();
  const main = session.kernels.find((kernel) => kernel.hostname === "main1");
  const definitions = new Set(session.spec?.apps.map((app) => app.name));
  const ports: Port[] = [...(session.spec?.servicePorts ?? []), ...(main?.servicePorts ?? [])]
    .filter((port, index, all) => all.findIndex((other) => other.name === port.name) === index)
    .map((port) => ({
      name: port.name,
      protocol: port.protocol,
      numbers: port.ports,
      app: definitions.has(port.name),
    }));
  const started = ports.filter((port) => port.app).map((port) => port.name);
  const states = useLoaded(
    `apps ${session.id} ${started.join(" ")} ${session.state}`,
    async (signal) => {
      if (session.state !== SessionState.RUNNING) return new Map<string, AppState>();
      const found = await Promise.all(
        started.map(async (app) => {
          const { status } = await apps.getApp({ session: session.id, app }, { signal });
          return [app, status?.state ?? AppState.UNSPECIFIED] as const;
        }),
      );
      return new Map(found);
    },
    5,
  );
  const attempt = async (act: () => Promise<unknown>) => {
    try {
      await act();
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    states.reload();
  };
  // A window that a click opens at once is not stopped; its address follows. It cannot reach this page.
  const open = (port: Port) => {
    const opened = window.open("about:blank", "_blank");
    void attempt(async () => {
      try {
        if (port.app) await apps.startApp({ session: session.id, app: port.name });
        const { url } = await kernels.createPortTicket({ session: session.id, port: port.name });
        if (opened === null || !/^https?:\/\//.test(url)) throw new Error(url);
        opened.opener = null;
        opened.location.replace(url);
      } catch (error) {
        opened?.close();
        throw error;
      }
    });
  };
  if (ports.length === 0) return <p className="note">{t("noPorts")}</p>;
  const running = session.state === SessionState.RUNNING;
  return (
    <>
      <Trouble problem={problem ?? states.problem} />
      <Table
        label={t("apps")}
        head={[t("name"), t("port"), t("state"), t("open")]}
        rows={ports.map((port) => ({
          key: port.name,
          cells: [
            port.name,
            `${port.protocol} ${port.numbers.join(", ")}`,
            port.app ? (AppState[states.value?.get(port.name) ?? AppState.UNSPECIFIED] ?? "").toLowerCase() : "",
            <span key="actions" className="actions">
              {port.protocol === "http" && (
                <button type="button" disabled={!running} onClick={() => open(port)}>
                  {t("open")}
                  <span className="hidden"> {port.name}</span>
                </button>
              )}
              {port.app && (
                <>
                  <button
                    type="button"
                    disabled={!running}
                    onClick={() => void attempt(() => apps.startApp({ session: session.id, app: port.name }))}
                  >
                    {t("start")}
                    <span className="hidden"> {port.name}</span>
                  </button>
                  <button
                    type="button"
                    disabled={!running}
                    onClick={() => void attempt(() => apps.stopApp({ session: session.id, app: port.name }))}
                  >
                    {t("stop")}
                    <span className="hidden"> {port.name}</span>
                  </button>
                </>
              )}
            </span>,
          ],
        }))}
      />
    </>
  );
}
