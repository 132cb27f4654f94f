/** A search with its order, by a name of the reader's. */
export interface Filter {
  name: string;
  /** As in the address of the list: `q=owner%3Amina&tab=waiting`. */
  query: string;
}

const FILTERS = "session-filters";
const COLUMNS = "session-columns";
/** What of the address of the list is part of a filter, in this order. */
const PARTS = ["q", "tab", "sort"] as const;

type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;

function read(store: Store, key: string): unknown {
  try {
    return JSON.parse(store.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

function write(store: Store, key: string, list: readonly unknown[]): void {
  if (list.length === 0) store.removeItem(key);
  else store.setItem(key, JSON.stringify(list));
}

/** The filters that are kept in this browser, by name. What is not readable is left out. */
export function keptFilters(store: Store = localStorage): readonly Filter[] {
  const found = read(store, FILTERS);
  if (!Array.isArray(found)) return [];
  return found.filter((each): each is Filter => typeof each?.name === "string" && typeof each?.query === "string");
}

/** Keeps a filter; another of the same name goes. */
export function keepFilter(filter: Filter, store: Store = localStorage): readonly Filter[] {
  const others = keptFilters(store).filter(({ name }) => name !== filter.name);
  const list = [...others, filter].sort((one, other) => one.name.localeCompare(other.name));
  write(store, FILTERS, list);
  return list;
}

export function dropFilter(name: string, store: Store = localStorage): readonly Filter[] {
  const list = keptFilters(store).filter((each) => each.name !== name);
  write(store, FILTERS, list);
  return list;
}

/** What of an address is a filter, always written alike. */
export function filterOf(parameters: URLSearchParams): string {
  const parts = new URLSearchParams();
  for (const part of PARTS) {
    const value = parameters.get(part);
    if (value) parts.set(part, value);
  }
  return parts.toString();
}

/** The columns that were chosen, in the order of `known`; `usual` ones before anything was chosen. */
export function keptColumns<T extends string>(
  known: readonly T[],
  usual: readonly T[],
  store: Store = localStorage,
): readonly T[] {
  const found = read(store, COLUMNS);
  if (!Array.isArray(found)) return usual;
  return known.filter((column) => found.includes(column));
}

export function keepColumns<T extends string>(
  columns: readonly T[],
  usual: readonly T[],
  store: Store = localStorage,
): void {
  const asUsual = columns.length === usual.length && columns.every((column) => usual.includes(column));
  if (asUsual) store.removeItem(COLUMNS);
  else store.setItem(COLUMNS, JSON.stringify(columns));
}
