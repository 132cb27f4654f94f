import { Code, createClient } from "@connectrpc/connect";
import { AccountService } from "../gen/retinue/manager/v1/account_service_pb";
import { SessionService } from "../gen/retinue/manager/v1/session_service_pb";
import { problemOf } from "./problem";
import { transport } from "./transport";

// What the first page needs; the clients of other services come with the pages that call them.
export const accounts = createClient(AccountService, transport);
export const sessions = createClient(SessionService, transport);

/** Reads all pages of a list, `most` items at the most. */
export async function allPages<T>(
  page: (pageToken: string) => Promise<{ items: T[]; nextPageToken: string }>,
  most = 5000,
): Promise<T[]> {
  const items: T[] = [];
  for (let token = ""; ; ) {
    const answer = await page(token);
    items.push(...answer.items);
    token = answer.nextPageToken;
    if (token === "" || items.length >= most) return items;
  }
}

export function isSignedOut(error: unknown): boolean {
  return problemOf(error).code === Code.Unauthenticated;
}
