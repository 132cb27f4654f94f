import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema } from "../gen/google/rpc/error_details_pb";
import type { Status } from "../gen/google/rpc/status_pb";

/** An error as it is shown: the server's own words, never a guess at them. */
export interface Problem {
  code: Code;
  /** The word of the reference page, such as `QUOTA`; empty when the server gives none. */
  reason: string;
  message: string;
  fields: { field: string; description: string }[];
}

export function problemOf(error: unknown): Problem {
  const known = ConnectError.from(error);
  const info = known.findDetails(ErrorInfoSchema)[0];
  const fields = known.findDetails(BadRequestSchema).flatMap((detail) => detail.fieldViolations);
  return {
    code: known.code,
    reason: info?.reason ?? "",
    message: known.rawMessage || Code[known.code],
    fields: fields.map(({ field, description }) => ({ field, description })),
  };
}

/** The same for one refusal among many answers, which is a message and no error of the call. */
export function problemOfStatus(status: Status): Problem {
  const error = new ConnectError(status.message, status.code);
  error.details = status.details.map(({ typeUrl, value }) => ({
    type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
    value,
  }));
  return problemOf(error);
}
