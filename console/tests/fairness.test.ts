import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ShareHistorySchema, ShareKind, ShareSchema } from "../src/gen/retinue/manager/v1/fleet_service_pb";
import { SessionSchema } from "../src/gen/retinue/manager/v1/session_pb";
import { byProject, portion, shareLines, weighted } from "../src/live/fairness";

const share = (owner: string, numerator: bigint, weight = 1) =>
  create(ShareSchema, { owner, weight, dominantSlot: "cpu", numerator, denominator: 10n });
const session = (owner: string, project: string, cpu: string, agent = "n1", resourceGroup = "default") =>
  create(SessionSchema, {
    owner,
    spec: { project, resourceGroup },
    kernels: [{ hostname: "main1", agent, slots: { cpu } }],
  });

it("puts owners under the projects that they hold something in", () => {
  const shares = [share("mina", 4n), share("jonas", 1n), share("unseen", 2n)];
  const found = byProject(
    shares,
    [
      session("mina", "vision", "3"),
      session("mina", "speech", "1"),
      session("jonas", "vision", "1"),
      session("mina", "speech", "9", ""),
      session("mina", "speech", "9", "n1", "other"),
    ],
    "default",
  );
  expect(found.map((entry) => [entry.project, entry.portion, entry.members.map((each) => each.share.owner)])).toEqual([
    ["vision", 0.4, ["mina", "jonas"]],
    ["", 0.2, ["unseen"]],
    ["speech", 0.1, ["mina"]],
  ]);
});

it("divides by the weight", () => {
  expect(portion(share("mina", 4n, 2))).toBe(0.4);
  expect(weighted(share("mina", 4n, 2))).toBe(0.2);
  expect(portion(create(ShareSchema, { numerator: 1n }))).toBe(0);
});

it("draws shares over time by weight, with a break where nobody looked", () => {
  const at = (hour: number) => ({ seconds: BigInt(3600 * hour), nanos: 0 });
  const histories = [
    create(ShareHistorySchema, { kind: ShareKind.PROJECT, name: "vision", points: [{ startTime: at(1), share: 0.5 }] }),
    create(ShareHistorySchema, {
      kind: ShareKind.USER,
      name: "mina",
      weight: 2,
      points: [1, 2, 6].map((hour) => ({ startTime: at(hour), share: 0.5 })),
    }),
  ];
  expect(shareLines(histories, ShareKind.USER, 3600, 8, ({ name }) => name)).toEqual([
    {
      name: "mina",
      points: [
        [3600, 25],
        [7200, 25],
        [10_800, null],
        [21_600, 25],
      ],
    },
  ]);
  expect(shareLines(histories, ShareKind.PROJECT, 3600, 8, ({ name }) => name)[0]?.points).toEqual([[3600, 50]]);
});
