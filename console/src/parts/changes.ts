/** One thing that a form would change. Nothing is the empty text. */
export interface Change {
  label: string;
  before: string;
  after: string;
}

/** Returns those that differ. */
export function differing(changes: readonly Change[]): Change[] {
  return changes.filter(({ before, after }) => before !== after);
}

/** What cannot be sent, by the field of the request that it would have been. */
export class UnreadableField extends Error {
  constructor(
    readonly field: string,
    description: string,
  ) {
    super(description);
  }
}
