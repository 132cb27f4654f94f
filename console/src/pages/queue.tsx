import { ArrowUpDown, Ellipsis, Hand, ListOrdered, Play } from "lucide-react";
import { useMemo, useState } from "react";
import { Link } from "react-router";
import { sessions as api } from "../api/client";
import { type Problem, problemOf } from "../api/problem";
import { Badge } from "../design/badge";
import { Button, ButtonLink, IconButton } from "../design/button";
import { Card } from "../design/card";
import { Dialog, Sheet } from "../design/dialog";
import { TextField } from "../design/fields";
import { Menu, MenuItem } from "../design/menu";
import { notify, notifyProblem } from "../design/notify";
import { Page } from "../design/page";
import { Empty, Skeleton } from "../design/states";
import { Table } from "../design/table";
import { type Session, SessionState } from "../gen/retinue/manager/v1/session_pb";
import { type ExplainSessionResponse, ReasonTier } from "../gen/retinue/manager/v1/session_service_pb";
import { reasonWords, whyOf } from "../live/reasons";
import { asked } from "../live/state";
import { ClusterTag, Conditions, Trouble } from "../parts/basics";
import { useLoaded, useNow, useSessions, useStatus } from "../parts/store";
import { amount, amounts, amountText, between, moment } from "../text/format";
import { type Key, t } from "../text/language";

const PERIOD = 15;
/** So many sessions are asked about for their places; more would keep the scheduler busy. */
const ASKED = 40;
const SHOWN = 500;
const USUAL = 10;

function priorityOf(session: Session): number {
  return session.spec?.priority ?? USUAL;
}

/** What waits, by resource group in the order in which the scheduler looks at it, with the reason of each. */
export default function Queue() {
  const now = useNow();
  const status = useStatus();
  const all = useSessions();
  const waiting = useMemo(() => all.filter((session) => session.state === SessionState.PENDING), [all]);
  const groups = Map.groupBy(waiting, (session) => session.spec?.resourceGroup || "default");
  const [explained, setExplained] = useState<Session>();
  const [changing, setChanging] = useState<Session>();
  const first = waiting
    .toSorted((one, other) => priorityOf(other) - priorityOf(one) || Number(one.number - other.number))
    .slice(0, ASKED);
  const places = useLoaded(
    `places ${first.map(({ id }) => id).join(" ")}`,
    async (signal) => {
      const found = new Map<string, number>();
      // One after the other: it is no hurry, and the scheduler answers each.
      for (const { id } of first) {
        try {
          found.set(id, (await api.explainSession({ session: id }, { signal })).queuePosition);
        } catch {
          // It has started or ended meanwhile; the list says so itself.
        }
      }
      return found;
    },
    PERIOD,
  );
  const placeOf = (session: Session) => places.value?.get(session.id) || Number.POSITIVE_INFINITY;
  return (
    <Page title={t("queue")} lead={t("queueLead")}>
      {waiting.length === 0 && (
        <Card>
          {status.state === "live" ? (
            <Empty
              icon={<ListOrdered size={32} aria-hidden="true" />}
              title={t("nothingQueued")}
              action={
                <ButtonLink to="/sessions/new" look="primary">
                  {t("newSession")}
                </ButtonLink>
              }
            >
              {t("nothingWaitsHelp")}
            </Empty>
          ) : (
            <Skeleton />
          )}
        </Card>
      )}
      {[...groups].map(([group, sessions]) => (
        <Card
          key={group}
          flush
          title={
            <span className="flex items-center gap-2">
              {group}
              <Badge>{t("waitingCount", { count: sessions.length })}</Badge>
            </span>
          }
        >
          <Table
            label={group}
            numeric={[t("placeInQueue"), t("priority"), t("age")]}
            head={[t("placeInQueue"), t("name"), t("why"), t("use"), t("priority"), t("age"), t("actions")]}
            rows={sessions
              .toSorted(
                (one, other) =>
                  placeOf(one) - placeOf(other) ||
                  priorityOf(other) - priorityOf(one) ||
                  Number(one.number - other.number),
              )
              .slice(0, SHOWN)
              .map((session) => ({
                key: session.id,
                cells: [
                  Number.isFinite(placeOf(session)) ? String(placeOf(session)) : "–",
                  <span key="name" className="flex flex-col whitespace-nowrap">
                    <Link to={`/sessions/${session.id}`} className="font-medium text-ink no-underline hover:underline">
                      {session.spec?.name}
                    </Link>
                    <small>{session.owner}</small>
                  </span>,
                  <span key="why" className="why line-clamp-2 max-w-md min-w-60" title={whyOf(session).title}>
                    {session.spec?.hold && <Badge tone="warn">{t("onHold")}</Badge>} {whyOf(session).text}
                  </span>,
                  <span key="use" className="flex flex-col items-start gap-1 whitespace-nowrap">
                    {amounts(asked(session))}
                    {session.kernels.length > 1 && <ClusterTag session={session} />}
                  </span>,
                  String(priorityOf(session)),
                  <span key="age" className="whitespace-nowrap">
                    {session.createTime ? between(session.createTime, undefined, now) : ""}
                  </span>,
                  <span key="actions" className="flex items-center gap-1">
                    <Button
                      size="small"
                      onClick={() => setExplained(session)}
                      aria-label={t("explainSession", { name: session.spec?.name ?? "" })}
                    >
                      {t("explain")}
                    </Button>
                    <RowMenu session={session} onPriority={() => setChanging(session)} />
                  </span>,
                ],
              }))}
          />
        </Card>
      ))}
      {explained && <Explanation session={explained} onClose={() => setExplained(undefined)} />}
      {changing && <PriorityDialog session={changing} onClose={() => setChanging(undefined)} />}
    </Page>
  );
}

async function setHold(session: Session, hold: boolean): Promise<void> {
  await api.updateSession({ session: session.id, spec: { hold }, updateMask: { paths: ["hold"] } });
}

function RowMenu({ session, onPriority }: { session: Session; onPriority: () => void }) {
  const held = session.spec?.hold ?? false;
  const name = session.spec?.name ?? "";
  const change = async () => {
    try {
      await setHold(session, !held);
      notify(t(held ? "releasedNotice" : "heldNotice", { name }), {
        undo: () =>
          void setHold(session, held).catch((error) => notifyProblem(t("sessionNotChanged", { name }), error)),
      });
    } catch (error) {
      notifyProblem(t("sessionNotChanged", { name }), error);
    }
  };
  return (
    <Menu
      trigger={
        <IconButton label={t("actionsOfSession", { name })} size="small">
          <Ellipsis size={15} aria-hidden="true" />
        </IconButton>
      }
    >
      <MenuItem icon={<ArrowUpDown size={15} aria-hidden="true" />} onSelect={onPriority}>
        {t("changePriority")}…
      </MenuItem>
      <MenuItem
        icon={held ? <Play size={15} aria-hidden="true" /> : <Hand size={15} aria-hidden="true" />}
        onSelect={() => void change()}
      >
        {t(held ? "releaseSession" : "holdSession")}
      </MenuItem>
    </Menu>
  );
}

function PriorityDialog({ session, onClose }: { session: Session; onClose: () => void }) {
  const before = priorityOf(session);
  const [text, setText] = useState(String(before));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const name = session.spec?.name ?? "";
  const wanted = /^\d{1,4}$/.test(text.trim()) ? Number(text) : undefined;
  const send = (priority: number) =>
    api.updateSession({ session: session.id, spec: { priority }, updateMask: { paths: ["priority"] } });
  const save = async () => {
    if (wanted === undefined) return;
    setBusy(true);
    try {
      await send(wanted);
      notify(t("priorityIsNow", { name, priority: wanted }), {
        undo: () => void send(before).catch((error) => notifyProblem(t("sessionNotChanged", { name }), error)),
      });
      onClose();
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };
  return (
    <Dialog
      title={t("priorityOf", { name })}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button
            look="primary"
            busy={busy}
            disabled={wanted === undefined || wanted === before}
            onClick={() => void save()}
          >
            {t("setQueuePriority")}
          </Button>
        </>
      }
    >
      <TextField
        label={t("priority")}
        help={t("priorityHelp")}
        inputMode="numeric"
        error={problem?.fields[0]?.description}
        value={text}
        onChange={setText}
      />
      <Trouble problem={problem?.fields.length === 0 ? problem : undefined} />
    </Dialog>
  );
}

const TIERS: Partial<Record<ReasonTier, Key>> = {
  [ReasonTier.CONFIGURATION]: "tierConfiguration",
  [ReasonTier.POLICY]: "tierPolicy",
  [ReasonTier.CAPACITY]: "tierCapacity",
  [ReasonTier.SYSTEM]: "tierSystem",
};

/** Why one session waits: from the server, again while it is open. */
function Explanation({ session, onClose }: { session: Session; onClose: () => void }) {
  const found = useLoaded(
    `explain ${session.id}`,
    (signal) => api.explainSession({ session: session.id }, { signal }),
    5,
  );
  return (
    <Sheet title={t("whyItWaits", { name: session.spec?.name ?? session.id })} onClose={onClose}>
      <Trouble problem={found.problem} retry={found.reload} />
      {found.value === undefined && found.problem === undefined && <Skeleton lines={6} />}
      {found.value && <Explained answer={found.value} />}
      <div className="flex flex-wrap gap-2">
        <ButtonLink to={`/sessions/${session.id}`}>{t("openSession")}</ButtonLink>
      </div>
    </Sheet>
  );
}

function Explained({ answer }: { answer: ExplainSessionResponse }) {
  const tier = TIERS[answer.tier];
  const agents = answer.agents.reduce((sum, { number }) => sum + number, 0);
  return (
    <>
      <div>
        <p className="font-semibold" title={answer.reason}>
          {reasonWords(answer.reason)}
        </p>
        {answer.message && <p className="text-quiet first-letter:uppercase">{answer.message}</p>}
      </div>
      {tier && (
        <p>
          <Badge tone={answer.tier === ReasonTier.CONFIGURATION ? "bad" : "warn"}>{t(tier)}</Badge>
        </p>
      )}
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 tabular-nums [&>dt]:text-quiet">
        {answer.queuePosition > 0 && (
          <>
            <dt>{t("placeInQueue")}</dt>
            <dd>{t("placeOf", { place: answer.queuePosition, length: answer.queueLength })}</dd>
          </>
        )}
        {answer.estimatedStartTime && (
          <>
            <dt>{t("hasRoomBy")}</dt>
            <dd>{moment(answer.estimatedStartTime)}</dd>
          </>
        )}
        {answer.nextTryTime && (
          <>
            <dt>{t("notBefore")}</dt>
            <dd>{moment(answer.nextTryTime)}</dd>
          </>
        )}
        {answer.evaluateTime && (
          <>
            <dt>{t("lastLooked")}</dt>
            <dd>{moment(answer.evaluateTime)}</dd>
          </>
        )}
        {answer.failedStarts > 0 && (
          <>
            <dt>{t("failedStartsLabel")}</dt>
            <dd>{t("failedOn", { count: answer.failedStarts, agents: answer.failedAgents.join(", ") })}</dd>
          </>
        )}
      </dl>
      {answer.shortfalls.length > 0 && (
        <section>
          <h3>{t("whatLacks")}</h3>
          <ul className="flex flex-col gap-1">
            {answer.shortfalls.map((short) => (
              <li key={short.hostname + short.slot}>
                {t(short.hostname === "" ? "lacksTogether" : "lacks", {
                  kernel: short.hostname,
                  amount: `${short.slot} ${shown(short.slot, short.requested)}`,
                  agent: short.bestAgent,
                  free: shown(short.slot, short.free),
                })}
              </li>
            ))}
          </ul>
        </section>
      )}
      {answer.agents.length > 0 && (
        <section>
          <h3>{t("nodesByCause")}</h3>
          <ul className="flex flex-col gap-1.5">
            {answer.agents.map(({ cause, number }) => (
              <li key={cause} className="grid grid-cols-[2.5rem_1fr] items-center gap-2">
                <span className="text-right font-medium tabular-nums">{number.toLocaleString()}</span>
                <span>
                  {cause}
                  <span aria-hidden="true" className="mt-0.5 block h-1 rounded-full bg-sunken">
                    <span
                      className="block h-1 rounded-full bg-accent"
                      style={{ width: `${agents > 0 ? (100 * number) / agents : 0}%` }}
                    />
                  </span>
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
      {answer.waitsFor.length > 0 && (
        <section>
          <h3>{t("waitsForThese")}</h3>
          <ul>
            {answer.waitsFor.map((dependency) => (
              <li key={dependency.sessionId}>
                <Link to={`/sessions/${dependency.sessionId}`}>{dependency.name || dependency.sessionId}</Link>
              </li>
            ))}
          </ul>
        </section>
      )}
      {answer.wouldStartWith.length > 0 && (
        <section className="rounded-md bg-good-soft px-3 py-2 text-good">
          <h3>{t("wouldStartNow")}</h3>
          <ul className="list-disc pl-5">
            {answer.wouldStartWith.map((change) => (
              <li key={change}>{change}</li>
            ))}
          </ul>
        </section>
      )}
      {answer.advice.length > 0 && (
        <section>
          <h3>{t("whatHelps")}</h3>
          <ul className="list-disc pl-5">
            {answer.advice.map((advice) => (
              <li key={advice}>{advice}</li>
            ))}
          </ul>
        </section>
      )}
      <Conditions conditions={answer.conditions} />
    </>
  );
}

function shown(slot: string, text: string): string {
  const value = amount(text);
  return Number.isNaN(value) ? text : amountText(slot, value);
}
