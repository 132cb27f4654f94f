/** Requests of one stream, sent in the order in which they were put. */
export class Outbox<Step> {
  private queue: Step[] = [];
  private wake = () => {};
  closed = false;

  put(step: Step): void {
    this.queue.push(step);
    this.wake();
  }

  close(): void {
    this.closed = true;
    this.wake();
  }

  /** All that is put, until it is closed. */
  async *steps(): AsyncGenerator<{ step: Step }> {
    for (;;) {
      while (this.queue.length === 0) {
        if (this.closed) return;
        await new Promise<void>((resolve) => {
          this.wake = resolve;
        });
      }
      yield { step: this.queue.shift() as Step };
    }
  }
}
