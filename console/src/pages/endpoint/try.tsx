import { ExternalLink } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";
import { buttonClasses } from "../../design/button";
import { Card } from "../../design/card";
import { Code } from "../../design/code";
import { Select, TextArea, TextField } from "../../design/fields";
import { Empty } from "../../design/states";
import { curl } from "../../live/curl";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { isPublic } from "./marks";

const METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD"] as const;
const TYPES = ["application/json", "text/plain", "application/x-www-form-urlencoded"] as const;
const EXAMPLE = '{"prompt": "Hello"}';

/**
 * Puts a request together. The pages' policy lets them reach the manager alone, and an endpoint is at another origin:
 * a shell sends the request, or another window of the browser.
 */
export default function Try({ endpoint }: PartProps) {
  const open = isPublic(endpoint);
  const [method, setMethod] = useState<(typeof METHODS)[number]>("GET");
  const [path, setPath] = useState("/");
  const [body, setBody] = useState("");
  const [type, setType] = useState<(typeof TYPES)[number]>(TYPES[0]);
  if (endpoint.url === "") return <Empty title={t("noRouter")}>{t("noRouterHelp")}</Empty>;
  const url = endpoint.url.replace(/\/$/, "") + (path.startsWith("/") ? path : `/${path}`);
  const hasBody = method === "POST" || method === "PUT";
  const command = curl({ method, url, body: hasBody ? body : "", contentType: type, withToken: !open });
  return (
    <div className="grid items-start gap-4 lg:grid-cols-2">
      <Card title={t("request")}>
        <div className="flex flex-col gap-3">
          <div className="grid grid-cols-[7rem_1fr] gap-3">
            <Select
              label={t("method")}
              value={method}
              onChange={setMethod}
              options={METHODS.map((value) => ({ value, label: value }))}
            />
            <TextField label={t("path")} value={path} onChange={setPath} />
          </div>
          {hasBody && (
            <>
              <Select
                label={t("contentType")}
                value={type}
                onChange={setType}
                options={TYPES.map((value) => ({ value, label: value }))}
                className="max-w-80"
              />
              <TextArea label={t("body")} mono rows={6} placeholder={EXAMPLE} value={body} onChange={setBody} />
            </>
          )}
          {!open && (
            <p className="text-sm text-quiet">
              {t("needsToken")} <Link to={`/endpoints/${endpoint.id}/tokens`}>{t("makeEndpointToken")}</Link>
            </p>
          )}
        </div>
      </Card>
      <Card title={t("sendIt")}>
        <div className="flex flex-col gap-3">
          <p className="text-sm text-quiet">{t("browserMayNot")}</p>
          {!open && <Code code={t("tokenCommand")} language="bash" label={t("tokenFirst")} wrap />}
          <Code code={command} language="bash" label={t("curlCommand")} wrap />
          {open && method === "GET" && (
            <a href={url} target="_blank" rel="noreferrer" className={`${buttonClasses({})} self-start`}>
              <ExternalLink size={15} aria-hidden="true" />
              {t("openWindow")}
            </a>
          )}
        </div>
      </Card>
    </div>
  );
}
