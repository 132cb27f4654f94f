import { create, toJson } from "@bufbuild/protobuf";
import { useEffect, useMemo, useState } from "react";
import { useNavigate } from "react-router";
import { endpoints } from "../../api/endpoints";
import { type Problem, problemOf } from "../../api/problem";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { Choice } from "../../design/choice";
import { Diff } from "../../design/diff";
import { notify, notifyProblem } from "../../design/notify";
import {
  AccessMode,
  type Endpoint,
  type EndpointSpec,
  EndpointSpecSchema,
} from "../../gen/retinue/manager/v1/endpoint_pb";
import { Trouble } from "../../parts/basics";
import { useLoaded } from "../../parts/store";
import { endpointIn, manifestOf, UnreadableManifest } from "../../spec/manifest";
import { t } from "../../text/language";
import type { PartProps } from "../endpoint";
import { ManifestField } from "./manifest_field";
import { isPublic } from "./marks";

const PAUSE = 400;
const PLAIN = ["scaling", "routing", "access", "rollout", "labels"] as const;

interface Changes {
  spec?: EndpointSpec;
  message?: string;
  /** Fields that UpdateEndpoint takes. */
  paths: string[];
  /** Whether there will be a new revision. */
  revision: boolean;
}

function changesOf(stored: EndpointSpec, text: string): Changes {
  let spec: EndpointSpec;
  try {
    spec = endpointIn(text);
  } catch (error) {
    if (error instanceof UnreadableManifest) return { message: error.message, paths: [], revision: false };
    throw error;
  }
  if ((spec.name !== "" && spec.name !== stored.name) || (spec.project !== "" && spec.project !== stored.project)) {
    return { message: t("nameStays"), paths: [], revision: false };
  }
  const before = toJson(EndpointSpecSchema, stored) as Record<string, unknown>;
  const after = toJson(EndpointSpecSchema, spec) as Record<string, unknown>;
  const differs = (name: string) => JSON.stringify(before[name]) !== JSON.stringify(after[name]);
  return { spec, paths: PLAIN.filter(differs), revision: spec.revision !== undefined && differs("revision") };
}

/** Changes an endpoint: its file is written, what changes is shown, and the server checks it before. */
export default function Edit({ endpoint, reload }: PartProps) {
  const navigate = useNavigate();
  const stored = useMemo(() => manifestOf(endpoint.spec ?? create(EndpointSpecSchema)), [endpoint.spec]);
  const [text, setText] = useState<string>();
  const shown = text ?? stored;
  const changes = useMemo(() => changesOf(endpoint.spec ?? create(EndpointSpecSchema), shown), [endpoint.spec, shown]);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const [settled, setSettled] = useState(shown);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(shown), PAUSE);
    return () => clearTimeout(timer);
  }, [shown]);
  const any = changes.revision || changes.paths.length > 0;
  const apply = async (validateOnly: boolean, signal?: AbortSignal) => {
    const { spec } = changes;
    if (spec === undefined) return;
    const common = { endpoint: endpoint.id, validateOnly };
    if (changes.paths.length > 0) {
      await endpoints.updateEndpoint({ ...common, spec, updateMask: { paths: changes.paths } }, { signal });
    }
    if (changes.revision) {
      await endpoints.deployRevision({ ...common, revision: spec.revision, rollout: spec.rollout }, { signal });
    }
  };
  const checked = useLoaded(`check ${endpoint.id} ${endpoint.etag} ${settled}`, async (signal) => {
    if (!any || settled !== shown) return undefined;
    try {
      await apply(true, signal);
      return undefined;
    } catch (error) {
      return problemOf(error);
    }
  });
  const saveAll = async () => {
    setBusy(true);
    try {
      await apply(false);
      setProblem(undefined);
      setText(undefined);
      notify(t(changes.revision ? "revisionDeployed" : "endpointChanged"));
      reload();
      if (changes.revision) navigate(`/endpoints/${endpoint.id}/revisions`);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  return (
    <div className="grid items-start gap-4 xl:grid-cols-2">
      <div className="flex flex-col gap-4">
        <Access endpoint={endpoint} reload={reload} />
        <Card title={t("asFile")}>
          <ManifestField
            value={shown}
            rows={24}
            error={changes.message}
            onChange={(next) => {
              setProblem(undefined);
              setText(next);
            }}
          />
        </Card>
      </div>
      <Card title={t("whatEndpointChanges")} className="xl:sticky xl:top-4">
        <div className="flex flex-col gap-3">
          {!any && changes.message === undefined && <p className="text-quiet">{t("nothingOfIt")}</p>}
          {changes.revision && <p>{t("newRevisionComes", { number: endpoint.newestRevision + 1 })}</p>}
          {changes.paths.length > 0 && <p>{t("fieldsChange", { fields: changes.paths.join(", ") })}</p>}
          <Trouble problem={problem ?? checked.value} />
          <div className="flex gap-2">
            <Button
              look="primary"
              busy={busy}
              disabled={!any || checked.value !== undefined}
              onClick={() => void saveAll()}
            >
              {t(changes.revision ? "deployRevision" : "saveEndpoint")}
            </Button>
            {text !== undefined && <Button onClick={() => setText(undefined)}>{t("discard")}</Button>}
          </div>
          {any && changes.spec !== undefined && (
            <Diff label={t("whatEndpointChanges")} before={stored} after={manifestOf(changes.spec)} />
          )}
        </div>
      </Card>
    </div>
  );
}

function Access({ endpoint, reload }: { endpoint: Endpoint; reload: () => void }) {
  const send = async (mode: AccessMode) => {
    await endpoints.updateEndpoint({
      endpoint: endpoint.id,
      spec: create(EndpointSpecSchema, { access: { mode } }),
      updateMask: { paths: ["access.mode"] },
    });
    reload();
  };
  const choose = async (chosen: "token" | "public") => {
    const before = endpoint.spec?.access?.mode ?? AccessMode.TOKEN;
    try {
      await send(chosen === "public" ? AccessMode.PUBLIC : AccessMode.TOKEN);
      notify(t(chosen === "public" ? "nowPublic" : "nowWithToken"), {
        undo: () => void send(before).catch((error) => notifyProblem(t("undoRefused"), error)),
      });
    } catch (error) {
      notifyProblem(t("accessRefused"), error);
    }
  };
  const shown = isPublic(endpoint) ? "public" : "token";
  return (
    <Card title={t("whoMayCall")}>
      <div className="flex flex-col items-start gap-2">
        <Choice
          label={t("whoMayCall")}
          value={shown}
          onChange={(chosen) => void choose(chosen)}
          options={[
            { value: "token", label: t("withToken") },
            { value: "public", label: t("anyone") },
          ]}
        />
        <p className="text-sm text-quiet">{t(shown === "public" ? "anyoneHelp" : "withTokenHelp")}</p>
      </div>
    </Card>
  );
}
