import { create } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { expect, it } from "vitest";
import { problemOfStatus } from "../src/api/problem";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb";
import { StatusSchema } from "../src/gen/google/rpc/status_pb";

it("a refusal among many answers is shown like an error of a call", () => {
  const details = [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { domain: "retinue", reason: "NOT_FOUND" }))];
  const status = create(StatusSchema, { code: Code.NotFound, message: "no such session", details });
  expect(problemOfStatus(status)).toEqual({
    code: Code.NotFound,
    reason: "NOT_FOUND",
    message: "no such session",
    fields: [],
  });
});
