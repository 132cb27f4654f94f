import { AccessMethod, KernelState, type SessionEvent, SessionState } from "../gen/retinue/manager/v1/session_pb";

/** What happened, and why, in the words of the contract. */
export function eventWords({ change }: SessionEvent): [string, string] {
  switch (change.case) {
    case "created":
      return ["created", ""];
    case "sessionMoved":
      return [
        `${SessionState[change.value.fromState]} → ${SessionState[change.value.toState]}`,
        [change.value.reason, change.value.message].filter(Boolean).join(": "),
      ];
    case "kernelMoved":
      return [
        `${change.value.hostname}: ${KernelState[change.value.fromState]} → ${KernelState[change.value.toState]}`,
        [change.value.agent, change.value.reason, change.value.exitCode?.toString()].filter(Boolean).join(" "),
      ];
    case "reasonChanged":
      return ["reason", [change.value.reason, change.value.message].filter(Boolean).join(": ")];
    case "imagePull":
      return [`${change.value.hostname}: pulls ${change.value.image}`, ""];
    case "kernelAccessed":
      return [
        `${change.value.hostname}: ${AccessMethod[change.value.method]} ${change.value.app}${change.value.port || ""}`,
        [change.value.user, change.value.source, change.value.keyFingerprint].filter(Boolean).join(" "),
      ];
    case "sessionUpdated":
      return ["updated", `${change.value.name} ${change.value.priority} ${change.value.hold} ${change.value.user}`];
    default:
      return ["", ""];
  }
}
