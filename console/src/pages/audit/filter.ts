/** What is asked of the audit, as it was chosen and typed. */
export interface AuditQuery {
  who: string;
  category: string;
  method: string;
  object: string;
  outcome: string;
  since: string;
}

export const SINCE: Record<string, number> = { "1h": 3600, "24h": 86400, "7d": 604800, "30d": 2592000 };

const quoted = (value: string) => `"${value.replace(/[\\"]/g, "\\$&")}"`;

/** Returns the filter of ListAuditRecords. */
export function filterOf({ who, category, method, object, outcome }: AuditQuery): string {
  const terms: string[] = [];
  const equal = (field: string, value: string) => {
    if (value.trim() !== "") terms.push(`${field} = ${quoted(value.trim())}`);
  };
  equal("principal", who);
  equal("category", category);
  equal("method", method);
  equal("object", object);
  if (outcome === "done") terms.push('code = "OK"');
  if (outcome === "refused") terms.push('code != "OK"');
  return terms.join(" AND ");
}

/** The name of a call without its service: `CreateUser` of `/retinue.manager.v1.AccountService/CreateUser`. */
export function shortMethod(method: string): string {
  return method.slice(method.lastIndexOf("/") + 1);
}
