import { quoted } from "../spec/words";

/** Writes a request as a command of a shell. A token comes from the environment, so that no history keeps it. */
export function curl(request: {
  method: string;
  url: string;
  body: string;
  contentType: string;
  withToken: boolean;
}): string {
  const words = [["curl", "-i"]];
  if (request.method !== "GET") words.push(["-X", request.method]);
  if (request.withToken) words.push(["-H", '"Authorization: Bearer $ENDPOINT_TOKEN"']);
  if (request.body !== "") {
    words.push(["-H", quoted(`Content-Type: ${request.contentType}`)], ["--data-binary", quoted(request.body)]);
  }
  words.push([quoted(request.url)]);
  return words.map((line) => line.join(" ")).join(" \\\n  ");
}
