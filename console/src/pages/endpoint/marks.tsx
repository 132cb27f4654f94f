import { Badge, type Tone } from "../../design/badge";
import {
  AccessMode,
  type Endpoint,
  EndpointState,
  ReplicaState,
  type Rollout,
  RolloutState,
} from "../../gen/retinue/manager/v1/endpoint_pb";
import { type Key, t } from "../../text/language";

type Marks<T extends number> = Partial<Record<T, { key: Key; tone: Tone }>>;

const ENDPOINTS: Marks<EndpointState> = {
  [EndpointState.CREATING]: { key: "endpointCreating", tone: "busy" },
  [EndpointState.READY]: { key: "endpointReady", tone: "good" },
  [EndpointState.UPDATING]: { key: "endpointUpdating", tone: "busy" },
  [EndpointState.DEGRADED]: { key: "endpointDegraded", tone: "warn" },
  [EndpointState.ASLEEP]: { key: "endpointAsleep", tone: "neutral" },
  [EndpointState.UNAVAILABLE]: { key: "endpointUnavailable", tone: "bad" },
  [EndpointState.DELETING]: { key: "endpointDeleting", tone: "busy" },
  [EndpointState.DELETED]: { key: "endpointDeleted", tone: "neutral" },
};
const REPLICAS: Marks<ReplicaState> = {
  [ReplicaState.STARTING]: { key: "replicaStarting", tone: "busy" },
  [ReplicaState.READY]: { key: "replicaReady", tone: "good" },
  [ReplicaState.UNREADY]: { key: "replicaUnready", tone: "warn" },
  [ReplicaState.DRAINING]: { key: "replicaDraining", tone: "busy" },
  [ReplicaState.STOPPING]: { key: "replicaStopping", tone: "busy" },
  [ReplicaState.GONE]: { key: "replicaGone", tone: "neutral" },
};
const ROLLOUTS: Marks<RolloutState> = {
  [RolloutState.PROGRESSING]: { key: "rolloutProgressing", tone: "busy" },
  [RolloutState.PAUSED]: { key: "rolloutPaused", tone: "warn" },
  [RolloutState.DONE]: { key: "rolloutDone", tone: "good" },
  [RolloutState.ROLLING_BACK]: { key: "rolloutRollingBack", tone: "warn" },
  [RolloutState.ROLLED_BACK]: { key: "rolloutRolledBack", tone: "bad" },
};

function Mark<T extends number>({ marks, names, value }: { marks: Marks<T>; names: Record<number, string>; value: T }) {
  const mark = marks[value];
  // The server may have states that this page does not know.
  const name = names[value] ?? String(value);
  return (
    <Badge tone={mark?.tone ?? "neutral"} className="state" title={name}>
      {mark === undefined ? name : t(mark.key)}
    </Badge>
  );
}

export function EndpointMark({ state }: { state: EndpointState }) {
  return <Mark marks={ENDPOINTS} names={EndpointState} value={state} />;
}

export function ReplicaMark({ state }: { state: ReplicaState }) {
  return <Mark marks={REPLICAS} names={ReplicaState} value={state} />;
}

export function RolloutMark({ rollout }: { rollout: Rollout }) {
  return <Mark marks={ROLLOUTS} names={RolloutState} value={rollout.state} />;
}

export function isPublic(endpoint: Endpoint): boolean {
  return endpoint.spec?.access?.mode === AccessMode.PUBLIC;
}

const SERIES = ["bg-series-1", "bg-series-2", "bg-series-3", "bg-series-4", "bg-series-5", "bg-series-6"];

/** The colour of a revision, the same wherever its share is drawn. */
export function revisionColour(revision: number): string {
  return SERIES[(revision - 1) % SERIES.length] ?? "bg-accent";
}

/** The shares of the requests as one bar, and in words. */
export function TrafficBar({ shares }: { shares: readonly { revision: number; percent: number }[] }) {
  const shown = shares.filter(({ percent }) => percent > 0);
  if (shown.length === 0) return <span className="text-quiet">–</span>;
  return (
    <span className="flex min-w-24 flex-col gap-1">
      <span aria-hidden="true" className="flex h-1.5 w-full gap-px overflow-hidden rounded-full">
        {shown.map(({ revision, percent }) => (
          <span key={revision} className={revisionColour(revision)} style={{ width: `${percent}%` }} />
        ))}
      </span>
      <span className="text-xs text-quiet tabular-nums">
        {shown.map(({ revision, percent }) => `r${revision} ${percent} %`).join(" · ")}
      </span>
    </span>
  );
}
