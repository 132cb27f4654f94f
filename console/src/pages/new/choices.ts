import { accounts, allPages } from "../../api/client";
import { fleet } from "../../api/fleet";
import { templates } from "../../api/templates";
import type { Quota } from "../../gen/retinue/manager/v1/account_service_pb";
import type { Agent, ResourceGroup } from "../../gen/retinue/manager/v1/fleet_service_pb";
import { type Template, TemplateView } from "../../gen/retinue/manager/v1/template_service_pb";

/** What there is to choose from. */
export interface Choices {
  groups: readonly ResourceGroup[];
  agents: readonly Agent[];
  templates: readonly Template[];
  quotas: readonly Quota[];
}

export const NO_CHOICES: Choices = { groups: [], agents: [], templates: [], quotas: [] };

export async function loadChoices(signal: AbortSignal): Promise<Choices> {
  const [groups, agents, found, quotas] = await Promise.all([
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
    allPages(async (pageToken) => {
      const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
      return { items: page.agents, nextPageToken: page.nextPageToken };
    }).catch(() => [] as Agent[]),
    allPages(async (pageToken) => {
      const page = await templates.listTemplates({ pageToken, view: TemplateView.FULL }, { signal });
      return { items: page.templates, nextPageToken: page.nextPageToken };
    }),
    accounts.listQuotas({}, { signal }).then(
      (page) => page.quotas,
      () => [] as Quota[],
    ),
  ]);
  return { groups, agents, templates: found, quotas };
}
