import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { useEffect, useRef, useState } from "react";
import { accounts } from "../../api/client";
import { type Problem, problemOf } from "../../api/problem";
import type { AuditRecord } from "../../gen/retinue/manager/v1/account_service_pb";
import { type AuditQuery, filterOf, SINCE } from "./filter";

const PAGE = 50;
/** So long a filter is left alone before it is asked for: one does not ask at each letter. */
const PAUSE = 250;

interface Found {
  records: AuditRecord[];
  /** What the next page is asked with; nothing when there is none. */
  next: { filter: string; startTime: ReturnType<typeof timestampFromMs> | undefined; pageToken: string } | undefined;
}

/** Records that match, page by page. */
export function useRecords(query: AuditQuery) {
  const [found, setFound] = useState<Found>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const [turn, setTurn] = useState(0);
  const current = useRef(new AbortController());
  const key = JSON.stringify(query);
  const read = async (asked: NonNullable<Found["next"]>, before: AuditRecord[], signal: AbortSignal) => {
    setBusy(true);
    try {
      const { filter, startTime, pageToken } = asked;
      const request = { filter, pageToken, pageSize: PAGE, ...(startTime && { startTime }) };
      const { records, nextPageToken } = await accounts.listAuditRecords(request, { signal });
      const next = nextPageToken === "" ? undefined : { ...asked, pageToken: nextPageToken };
      setFound({ records: [...before, ...records], next });
      setProblem(undefined);
    } catch (error) {
      if (!signal.aborted) setProblem(problemOf(error));
    } finally {
      if (!signal.aborted) setBusy(false);
    }
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` says what is asked, and `turn` asks again
  useEffect(() => {
    const stopping = new AbortController();
    current.current = stopping;
    const timer = setTimeout(() => {
      const seconds = SINCE[query.since];
      const startTime = seconds === undefined ? undefined : timestampFromMs(Date.now() - seconds * 1000);
      void read({ filter: filterOf(query), startTime, pageToken: "" }, [], stopping.signal);
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [key, turn]);
  const next = found?.next;
  return {
    records: found?.records,
    problem,
    busy,
    more: next && (() => void read(next, found.records, current.current.signal)),
    reload: () => setTurn((count) => count + 1),
  };
}
