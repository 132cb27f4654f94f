import { Code } from "@connectrpc/connect";
import { allPages, isSignedOut, sessions } from "../api/client";
import { problemOf } from "../api/problem";
import type { Session } from "../gen/retinue/manager/v1/session_pb";
import { Rows } from "./rows";

/** At most so many sessions are kept, the newest. */
export const MAX_SESSIONS = 5000;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;

export interface Status {
  state: "loading" | "live" | "reconnecting" | "signed-out";
  /** The journal position that what is shown is true at. */
  revision: bigint;
  since: Date;
}

/** All sessions that the caller may read, newest first: a list, then what happens after its revision. */
export class SessionStore {
  private rows = new Rows(MAX_SESSIONS);
  private incarnation = "";
  private listeners = new Set<() => void>();
  private frame = 0;
  private sorted: readonly Session[] | undefined;
  private stopping = new AbortController();
  status: Status = { state: "loading", revision: 0n, since: new Date() };

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** The sessions; the same array as long as nothing has changed. */
  all = (): readonly Session[] => {
    this.sorted ??= this.rows.all();
    return this.sorted;
  };

  get = (id: string): Session | undefined => this.rows.get(id);

  currentStatus = (): Status => this.status;

  /** Lists and watches until `stop`; signed out, it ends. */
  async run(): Promise<void> {
    const signal = this.stopping.signal;
    let pause = FIRST_PAUSE;
    let listed = false;
    while (!signal.aborted) {
      try {
        if (!listed) await this.list(signal);
        listed = true;
        const after = { revision: this.status.revision, incarnation: this.incarnation };
        for await (const response of sessions.watchSessions({ after }, { signal })) {
          pause = FIRST_PAUSE;
          for (const event of response.events) this.rows.apply(event);
          this.set({ state: "live", revision: response.position?.revision ?? 0n, since: new Date() });
        }
      } catch (error) {
        if (signal.aborted) return;
        if (isSignedOut(error)) {
          this.set({ ...this.status, state: "signed-out" });
          return;
        }
        // The journal does not go back so far, or is another one: list again.
        if (problemOf(error).code === Code.OutOfRange) listed = false;
      }
      this.set({ ...this.status, state: listed ? "reconnecting" : this.status.state });
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  stop(): void {
    this.stopping.abort();
    cancelAnimationFrame(this.frame);
  }

  private async list(signal: AbortSignal): Promise<void> {
    let revision: bigint | undefined;
    let incarnation = "";
    const found = await allPages<Session>(async (pageToken) => {
      const page = await sessions.listSessions({ pageSize: 500, pageToken, showEnded: true }, { signal });
      // What happens while pages are read comes again by the watch, after the first page.
      revision ??= page.position?.revision;
      incarnation = page.position?.incarnation ?? "";
      return { items: page.sessions, nextPageToken: page.nextPageToken };
    }, MAX_SESSIONS);
    this.rows.replace(found);
    this.incarnation = incarnation;
    this.set({ state: "live", revision: revision ?? 0n, since: new Date() });
  }

  private set(status: Status): void {
    this.status = status;
    this.sorted = undefined;
    // Whatever comes within a frame is drawn once.
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      for (const listener of this.listeners) listener();
    });
  }
}
