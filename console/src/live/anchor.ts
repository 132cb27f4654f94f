import type { Session } from "../gen/retinue/manager/v1/session_pb";

/**
 * Returns by how many rows what is in view has moved: a list that scrolls as far stays where it is for its reader. What
 * has changed itself may have moved by itself, and does not count; 0 when nothing in view is left.
 */
export function moved(before: readonly Session[], after: readonly Session[], first: number, last: number): number {
  for (let at = first; at <= last && at < before.length; at++) {
    const session = before[at];
    const now = session === undefined ? -1 : after.indexOf(session);
    if (now >= 0) return now - at;
  }
  return 0;
}
