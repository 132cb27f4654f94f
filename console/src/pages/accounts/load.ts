import { accounts, allPages } from "../../api/client";
import { ProjectRole, type SshKey, type Token, type User } from "../../gen/retinue/manager/v1/account_service_pb";
import { type Loaded, useLoaded } from "../../parts/store";

/** All users, for administrators; others have none to see. */
export function useUsers(admin: boolean): Loaded<User[]> {
  return useLoaded(`users ${admin}`, async (signal) => {
    if (!admin) return [];
    return allPages(async (pageToken) => {
      const page = await accounts.listUsers({ pageToken, pageSize: 500 }, { signal });
      return { items: page.users, nextPageToken: page.nextPageToken };
    });
  });
}

export function useProjectNames(): string[] {
  const found = useLoaded("project names", (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listProjects({ pageToken, pageSize: 500 }, { signal });
      return { items: page.projects.map(({ name }) => name), nextPageToken: page.nextPageToken };
    }),
  );
  return found.value ?? [];
}

export function useTokens(user: string): Loaded<Token[]> {
  return useLoaded(`tokens ${user}`, (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listTokens({ user, pageToken, pageSize: 500 }, { signal });
      return { items: page.tokens, nextPageToken: page.nextPageToken };
    }),
  );
}

export function useKeys(user: string): Loaded<SshKey[]> {
  return useLoaded(`keys ${user}`, (signal) =>
    allPages(async (pageToken) => {
      const page = await accounts.listSshKeys({ user, pageToken, pageSize: 500 }, { signal });
      return { items: page.keys, nextPageToken: page.nextPageToken };
    }),
  );
}

export const roleKey = (role: ProjectRole) =>
  role === ProjectRole.ADMIN ? ("projectAdmin" as const) : ("projectMember" as const);
