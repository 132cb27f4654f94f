import { accounts, allPages } from "../../api/client";
import { fleet } from "../../api/fleet";
import { type Quota, QuotaKind } from "../../gen/retinue/manager/v1/account_service_pb";
import type { Agent } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { type Loaded, useLoaded } from "../../parts/store";
import type { Key } from "../../text/administration";

export const KIND_WORDS: Record<number, Key> = {
  [QuotaKind.USER]: "user",
  [QuotaKind.PROJECT]: "project",
  [QuotaKind.RESOURCE_GROUP]: "group",
};

export function useQuotas(): Loaded<Quota[]> {
  return useLoaded(
    "quotas",
    (signal) =>
      allPages(async (pageToken) => {
        const page = await accounts.listQuotas({ pageToken, pageSize: 500 }, { signal });
        return { items: page.quotas, nextPageToken: page.nextPageToken };
      }),
    10,
  );
}

/** The names that a quota can be for. */
export async function namesOf(kind: QuotaKind, signal: AbortSignal): Promise<string[]> {
  return allPages(async (pageToken) => {
    const page = { pageToken, pageSize: 500 };
    if (kind === QuotaKind.USER) {
      const { users, nextPageToken } = await accounts.listUsers(page, { signal });
      return { items: users.map(({ name }) => name), nextPageToken };
    }
    if (kind === QuotaKind.PROJECT) {
      const { projects, nextPageToken } = await accounts.listProjects(page, { signal });
      return { items: projects.map(({ name }) => name), nextPageToken };
    }
    const { resourceGroups, nextPageToken } = await fleet.listResourceGroups(page, { signal });
    return { items: resourceGroups.map(({ name }) => name), nextPageToken };
  });
}

/** What the nodes have in all, by slot: what a limit can usefully be. */
export async function wholeCluster(signal: AbortSignal): Promise<Agent[]> {
  return allPages(async (pageToken) => {
    const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
    return { items: page.agents, nextPageToken: page.nextPageToken };
  });
}
