import type { Session, SessionEvent } from "../gen/retinue/manager/v1/session_pb";
import { applied } from "./reduce";

/** The newest sessions, at most so many, in the order in which they came: a page that stays open does not grow. */
export class Rows {
  private byId = new Map<string, Session>();
  private order: readonly string[] = [];

  constructor(private readonly max: number) {}

  /** Puts what was listed, newest first, in place of everything. */
  replace(sessions: readonly Session[]): void {
    this.byId = new Map(sessions.slice(0, this.max).map((session) => [session.id, session]));
    this.order = [...this.byId.keys()];
  }

  get(id: string): Session | undefined {
    return this.byId.get(id);
  }

  /** The number of sessions that are kept. */
  get size(): number {
    return this.byId.size;
  }

  all(): readonly Session[] {
    return this.order.flatMap((id) => this.byId.get(id) ?? []);
  }

  /** Takes an event; a new session takes the place of the oldest one. */
  apply(event: SessionEvent): void {
    const before = this.byId.get(event.sessionId);
    const after = applied(before, event);
    if (after === undefined || after === before) return;
    this.byId.set(after.id, after);
    if (before !== undefined) return;
    const order = [after.id, ...this.order];
    for (const id of order.splice(this.max)) this.byId.delete(id);
    this.order = order;
  }
}
