import type { operations as en } from "../en/operations";

export const operations: Record<keyof typeof en, string> = {};
