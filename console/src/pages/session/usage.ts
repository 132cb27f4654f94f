import { useRef, useState } from "react";
import { kernels as api } from "../../api/kernels";
import type { Problem } from "../../api/problem";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { useStream } from "../../live/stream";
import { UsageHistory } from "../../live/usage";

/** What the kernels of a session have used over the last hour, and use now. */
export function useUsage(session: Session) {
  const history = useRef(new UsageHistory());
  const [turn, setTurn] = useState(0);
  const [problem, setProblem] = useState<Problem>();
  const running = session.state === SessionState.RUNNING;
  useStream(
    `usage ${session.id} ${running}`,
    async (signal, arrived) => {
      let pageToken = "";
      do {
        const page = await api.listUsageSamples({ session: session.id, pageToken }, { signal });
        for (const { hostname, samples } of page.kernels) {
          for (const sample of samples) history.current.add(hostname, sample);
        }
        pageToken = page.nextPageToken;
      } while (pageToken !== "");
      setTurn((count) => count + 1);
      if (!running) return;
      for await (const response of api.streamStats({ session: session.id }, { signal })) {
        arrived();
        for (const { hostname, usage } of response.kernels) history.current.add(hostname, usage);
        setTurn((count) => count + 1);
      }
    },
    setProblem,
  );
  return { kernels: history.current.kernels, turn, problem };
}
