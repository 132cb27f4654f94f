export interface Share {
  revision: number;
  percent: number;
}

/** Gives one revision a share and the others the rest, in the proportion that they had: together always 100. */
export function withShare(shares: readonly Share[], revision: number, percent: number): Share[] {
  const others = shares.filter((share) => share.revision !== revision);
  if (others.length === 0) return shares.map((share) => ({ ...share, percent: 100 }));
  const rest = 100 - percent;
  const sum = others.reduce((total, share) => total + share.percent, 0);
  // Largest remainders, so that whole numbers come to the sum; the newest of the others has all where none had any.
  const exact = others.map((share, at) => ({
    revision: share.revision,
    exact: sum > 0 ? (rest * share.percent) / sum : at === 0 ? rest : 0,
  }));
  const given = new Map(exact.map((each) => [each.revision, Math.floor(each.exact)]));
  let left = rest - [...given.values()].reduce((total, value) => total + value, 0);
  for (const each of exact.toSorted((one, other) => (other.exact % 1) - (one.exact % 1))) {
    if (left <= 0) break;
    given.set(each.revision, (given.get(each.revision) ?? 0) + 1);
    left -= 1;
  }
  return shares.map((share) => ({
    revision: share.revision,
    percent: share.revision === revision ? percent : (given.get(share.revision) ?? 0),
  }));
}
