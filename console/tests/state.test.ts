import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ClusterMode, SessionSchema } from "../src/gen/retinue/manager/v1/session_pb";
import { askedOtherwise, clusterTag } from "../src/live/state";

function session(clusterMode: ClusterMode, agents: string[], clusterSize = agents.length) {
  return create(SessionSchema, { spec: { clusterMode, clusterSize }, kernels: agents.map((agent) => ({ agent })) });
}

it.each([
  ["on two nodes as asked", ClusterMode.MULTI_NODE, ["a", "b"], "Multi-node ×2", ""],
  ["on one node as asked", ClusterMode.SINGLE_NODE, ["a", "a"], "Single-node ×2", ""],
  [
    "on one node, though it may be on many",
    ClusterMode.MULTI_NODE,
    ["a", "a"],
    "Single-node ×2",
    "asked for multi-node",
  ],
  ["on two nodes, though one was asked", ClusterMode.SINGLE_NODE, ["a", "b"], "Multi-node ×2", "asked for single-node"],
  ["without a place, as asked", ClusterMode.MULTI_NODE, ["", "", ""], "Multi-node ×3", ""],
  ["with a place for some, as asked", ClusterMode.MULTI_NODE, ["a", ""], "Multi-node ×2", ""],
  ["alone, whatever was asked", ClusterMode.MULTI_NODE, ["a"], "Single-node ×1", ""],
])("tags a session %s", (_, mode, agents, tag, other) => {
  expect(clusterTag(session(mode, agents))).toBe(tag);
  expect(askedOtherwise(session(mode, agents))).toBe(other);
});

it("tags a session by its spec before its kernels are known", () => {
  expect(clusterTag(session(ClusterMode.MULTI_NODE, [], 4))).toBe("Multi-node ×4");
});
