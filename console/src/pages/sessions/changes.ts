import { sessions as api } from "../../api/client";
import { notify, notifyProblem } from "../../design/notify";
import { type Session, SessionState } from "../../gen/retinue/manager/v1/session_pb";
import { t } from "../../text/language";

/** So many calls at a time: a thousand sessions do not ask for a thousand connections. */
const TOGETHER = 8;

/** Whether the priority and the hold of a session can be changed. */
export function canWait(session: Session): boolean {
  return session.state === SessionState.PENDING && !session.spec?.endpoint;
}

/** Changes sessions one by one; says which are refused, and returns those that are not. */
async function each(sessions: readonly Session[], change: (session: Session) => Promise<unknown>): Promise<Session[]> {
  const done: Session[] = [];
  const left = [...sessions];
  const take = async () => {
    for (let session = left.shift(); session !== undefined; session = left.shift()) {
      try {
        await change(session);
        done.push(session);
      } catch (error) {
        notifyProblem(t("notChanged", { name: session.spec?.name ?? session.id }), error);
      }
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, take));
  return done;
}

function update(session: Session, path: "hold" | "priority", value: { hold: boolean } | { priority: number }) {
  return api.updateSession({ session: session.id, spec: value, updateMask: { paths: [path] } });
}

/** Holds waiting sessions, or releases them; it can be undone. */
export async function setHold(sessions: readonly Session[], hold: boolean): Promise<void> {
  const changing = sessions.filter((session) => canWait(session) && session.spec?.hold !== hold);
  const done = await each(changing, (session) => update(session, "hold", { hold }));
  const [first] = done;
  if (first === undefined) return;
  const words =
    done.length === 1
      ? t(hold ? "heldOne" : "releasedOne", { name: first.spec?.name ?? first.id })
      : t(hold ? "heldMany" : "releasedMany", { count: done.length });
  notify(words, { undo: () => void each(done, (session) => update(session, "hold", { hold: !hold })) });
}

/** Gives waiting sessions a priority; it can be undone. */
export async function setPriority(sessions: readonly Session[], priority: number): Promise<void> {
  const done = await each(sessions.filter(canWait), (session) => update(session, "priority", { priority }));
  if (done.length === 0) return;
  notify(t("priorityIs", { count: done.length, priority }), {
    undo: () =>
      void each(done, (session) => update(session, "priority", { priority: session.spec?.priority ?? priority })),
  });
}
