import { type ComponentType, type LazyExoticComponent, lazy as once } from "react";

/** Milliseconds before each further try. */
const PAUSES: readonly number[] = [200, 1000, 3000];

/** Loads a part of the page, again where that fails: a laptop that changes its network loses what is under way. */
export async function again<T>(load: () => Promise<T>, pauses: readonly number[] = PAUSES): Promise<T> {
  for (const pause of pauses) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return load();
}

/** As React's `lazy`; what fails to load is tried again. */
// biome-ignore lint/suspicious/noExplicitAny: as React declares it, for components of any properties
export function lazy<C extends ComponentType<any>>(load: () => Promise<{ default: C }>): LazyExoticComponent<C> {
  return once(() => again(load));
}
