import { ExternalLink, Network, Play, Square } from "lucide-react";
import { useState } from "react";
import { apps } from "../../api/apps";
import { kernels } from "../../api/kernels";
import { type Problem, problemOf } from "../../api/problem";
import { Badge, type Tone } from "../../design/badge";
import { Button } from "../../design/button";
import { CopyButton } from "../../design/copy";
import { Empty } from "../../design/states";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { AppState } from "../../gen/retinue/types/v1/app_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { type Key, t } from "../../text/language";

interface Port {
  name: string;
  protocol: string;
  numbers: number[];
  app: boolean;
}

const STATES: Partial<Record<AppState, { key: Key; tone: Tone }>> = {
  [AppState.STOPPED]: { key: "appStopped", tone: "neutral" },
  [AppState.STARTING]: { key: "appStarting", tone: "busy" },
  [AppState.RUNNING]: { key: "appRunning", tone: "good" },
};

/** Ports of main1, by name, and the apps that are started for them. */
export default function Apps({ session }: { session: Session }) {
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState("");
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
  const attempt = async (what: string, act: () => Promise<unknown>) => {
    setBusy(what);
    try {
      await act();
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy("");
    states.reload();
  };
  // A window that a click opens at once is not stopped; its address follows. It cannot reach this page.
  const open = (port: Port) => {
    const opened = window.open("about:blank", "_blank");
    void attempt(`open ${port.name}`, async () => {
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
  if (ports.length === 0) {
    return (
      <Empty icon={<Network size={32} aria-hidden="true" />} title={t("noPorts")}>
        {t("noPortsHelp")}
      </Empty>
    );
  }
  const running = session.state === SessionState.RUNNING;
  return (
    <>
      <Trouble problem={problem ?? states.problem} />
      {!running && <p className="pb-3 text-quiet">{t("portsNeedRunning")}</p>}
      <ul aria-label={t("apps")} className="grid grid-cols-[repeat(auto-fill,minmax(min(19rem,100%),1fr))] gap-3">
        {ports.map((port) => {
          const state = STATES[states.value?.get(port.name) ?? AppState.UNSPECIFIED];
          const forward = `retinue port-forward ${session.spec?.name} ${port.name}`;
          return (
            <li key={port.name} className="flex min-w-0 flex-col gap-3 rounded-lg border border-line bg-card p-4">
              <div className="flex items-center gap-2">
                <span
                  className="flex size-9 shrink-0 items-center justify-center rounded-md bg-accent-soft font-semibold text-accent uppercase"
                  aria-hidden="true"
                >
                  {port.name.slice(0, 2)}
                </span>
                <span className="flex min-w-0 grow flex-col">
                  <strong className="truncate" title={port.name}>
                    {port.name}
                  </strong>
                  <small>
                    {port.protocol.toUpperCase()} {port.numbers.join(", ")}
                  </small>
                </span>
                {port.app && state && <Badge tone={state.tone}>{t(state.key)}</Badge>}
              </div>
              <div className="mt-auto flex flex-wrap items-center gap-2">
                {port.protocol === "http" && (
                  <Button
                    look="primary"
                    disabled={!running}
                    busy={busy === `open ${port.name}`}
                    icon={<ExternalLink size={15} aria-hidden="true" />}
                    aria-label={`${t("open")} ${port.name}`}
                    onClick={() => open(port)}
                  >
                    {t("open")}
                  </Button>
                )}
                {port.app && (
                  <>
                    <Button
                      disabled={!running}
                      busy={busy === `start ${port.name}`}
                      icon={<Play size={14} aria-hidden="true" />}
                      aria-label={`${t("start")} ${port.name}`}
                      onClick={() =>
                        void attempt(`start ${port.name}`, () => apps.startApp({ session: session.id, app: port.name }))
                      }
                    >
                      {t("start")}
                    </Button>
                    <Button
                      disabled={!running}
                      busy={busy === `stop ${port.name}`}
                      icon={<Square size={14} aria-hidden="true" />}
                      aria-label={`${t("stop")} ${port.name}`}
                      onClick={() =>
                        void attempt(`stop ${port.name}`, () => apps.stopApp({ session: session.id, app: port.name }))
                      }
                    >
                      {t("stop")}
                    </Button>
                  </>
                )}
              </div>
              <span
                className="inline-flex max-w-full min-w-0 items-center self-start rounded-md bg-sunken pl-2"
                title={t("toThisMachine")}
              >
                <code className="truncate" title={forward}>
                  {forward}
                </code>
                <CopyButton text={forward} />
              </span>
            </li>
          );
        })}
      </ul>
    </>
  );
}
