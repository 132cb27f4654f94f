import { useSearchParams } from "react-router";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { chooseReader, readsScreen } from "../../parts/screen_reader";
import { t } from "../../text/language";

/** A terminal is a document of its own, which may be taken to a window of its own. */
export default function Terminals({ session }: { session: Session }) {
  const [parameters, setParameters] = useSearchParams();
  const kernel = parameters.get("kernel") ?? "main1";
  const path = `/terminal/${session.id}/${encodeURIComponent(kernel)}`;
  if (session.state !== SessionState.RUNNING) return <p className="note">{session.reason}</p>;
  return (
    <>
      <div className="toolbar">
        <select
          aria-label={t("kernel")}
          value={kernel}
          onChange={(event) => setParameters({ kernel: event.target.value }, { replace: true })}
        >
          {session.kernels.map(({ hostname }) => (
            <option key={hostname}>{hostname}</option>
          ))}
        </select>
        <a className="button" href={path} target="_blank" rel="noopener">
          {t("popOut")}
        </a>
        <label>
          <input
            type="checkbox"
            defaultChecked={readsScreen()}
            onChange={(event) => chooseReader(event.target.checked)}
          />
          {t("screenReader")}
        </label>
      </div>
      <iframe
        key={path}
        className="terminal"
        title={`${t("terminal")} ${kernel}`}
        src={path}
        allow="clipboard-read; clipboard-write"
      />
    </>
  );
}
