import { toJson } from "@bufbuild/protobuf";
import { CircleCheck, Download } from "lucide-react";
import { use, useEffect, useMemo, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { endpoints } from "../../api/endpoints";
import { type Problem, problemOf } from "../../api/problem";
import { Button } from "../../design/button";
import { Card } from "../../design/card";
import { Choice } from "../../design/choice";
import { Code } from "../../design/code";
import { Select, TextArea, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { Page } from "../../design/page";
import { type EndpointSpec, EndpointSpecSchema } from "../../gen/retinue/manager/v1/endpoint_pb";
import { Trouble } from "../../parts/basics";
import { CallerContext } from "../../parts/caller";
import { save } from "../../parts/save";
import { useLoaded } from "../../parts/store";
import { EMPTY_ENDPOINT, type EndpointForm, endpointOf, FIELDS } from "../../spec/endpoint_form";
import { endpointIn, manifestOf, UnreadableManifest } from "../../spec/manifest";
import { UnreadableText } from "../../spec/words";
import { type Key, t } from "../../text/language";
import { ManifestField } from "./manifest_field";

type Way = "form" | "file";
const PAUSE = 300;

interface Read {
  spec?: EndpointSpec;
  /** What the page itself cannot read, by field of the form, or in the file. */
  field?: string;
  message?: string;
}

function read(way: Way, form: EndpointForm, text: string): Read {
  try {
    if (way === "form") return form.name.trim() === "" ? {} : { spec: endpointOf(form) };
    return text.trim() === "" ? {} : { spec: endpointIn(text) };
  } catch (error) {
    if (error instanceof UnreadableText) return { field: error.field, message: error.message };
    if (error instanceof UnreadableManifest) return { message: error.message };
    throw error;
  }
}

/** A new endpoint: by fields, or from a file. The server checks it while it is written. */
export default function NewEndpoint() {
  const navigate = useNavigate();
  const caller = use(CallerContext);
  const [parameters, setParameters] = useSearchParams();
  const way: Way = parameters.get("from") === "file" ? "file" : "form";
  const [form, setForm] = useState<EndpointForm>(EMPTY_ENDPOINT);
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const found = useMemo(() => read(way, form, text), [way, form, text]);
  const { spec } = found;
  const written = spec === undefined ? "" : JSON.stringify(toJson(EndpointSpecSchema, spec));
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(written), PAUSE);
    return () => clearTimeout(timer);
  }, [written]);
  const checked = useLoaded(`check ${settled}`, async (signal) => {
    if (settled === "" || spec === undefined) return { problem: undefined };
    try {
      return { endpoint: (await endpoints.createEndpoint({ spec, validateOnly: true }, { signal })).endpoint };
    } catch (error) {
      return { problem: problemOf(error) };
    }
  });
  const refused = problem ?? checked.value?.problem;
  const errors: Partial<Record<keyof EndpointForm, string>> = {};
  const rest: Problem["fields"] = [];
  if (way === "form" && found.field !== undefined) errors[found.field as keyof EndpointForm] = found.message;
  for (const each of refused?.fields ?? []) {
    const field = way === "form" ? FIELDS[each.field] : undefined;
    if (field === undefined) rest.push(each);
    else errors[field] = each.description;
  }
  const shownProblem =
    refused && (refused.fields.length === 0 || rest.length > 0) ? { ...refused, fields: rest } : undefined;
  const change = (changes: Partial<EndpointForm>) => {
    setProblem(undefined);
    setForm((before) => ({ ...before, ...changes }));
  };
  const create = async () => {
    if (spec === undefined) return;
    setBusy(true);
    try {
      const made = (await endpoints.createEndpoint({ spec, requestId: crypto.randomUUID() })).endpoint;
      notify(t("endpointMade", { name: spec.name }));
      navigate(`/endpoints/${made?.id}`);
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };
  const choose = (next: Way) => {
    if (next === "file" && spec !== undefined) setText(manifestOf(spec));
    setParameters(next === "file" ? { from: "file" } : {}, { replace: true });
  };
  const good = checked.value?.endpoint !== undefined && settled === written && spec !== undefined;
  const manifest = spec === undefined ? "" : manifestOf(spec);
  return (
    <Page
      title={t("newEndpoint")}
      crumbs={[{ label: t("endpoints"), to: "/endpoints" }]}
      actions={
        <Choice
          label={t("howToWrite")}
          value={way}
          onChange={choose}
          options={[
            { value: "form", label: t("byFields") },
            { value: "file", label: t("fromFile") },
          ]}
        />
      }
    >
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
        {way === "form" ? (
          <Fields
            form={form}
            change={change}
            errors={errors}
            projects={caller.memberships.map((each) => each.project)}
          />
        ) : (
          <Card>
            <ManifestField
              value={text}
              onChange={(next) => {
                setProblem(undefined);
                setText(next);
              }}
              error={found.message}
            />
          </Card>
        )}
        <Card title={t("whatWillBe")} className="xl:sticky xl:top-4">
          <div className="outcome flex flex-col gap-3">
            {spec === undefined && found.message === undefined && (
              <p className="text-quiet">{t(way === "form" ? "nameFirst" : "fileFirst")}</p>
            )}
            {good && spec !== undefined && (
              <p className="flex items-start gap-2 text-good">
                <CircleCheck size={17} aria-hidden="true" className="mt-0.5 shrink-0" />
                {t("canBeMade", {
                  name: spec.name,
                  min: checked.value?.endpoint?.spec?.scaling?.min ?? 1,
                  max: checked.value?.endpoint?.spec?.scaling?.max ?? 1,
                })}
              </p>
            )}
            <Trouble problem={shownProblem} />
            <div className="flex flex-wrap gap-2">
              <Button look="primary" busy={busy} disabled={!good} onClick={() => void create()}>
                {t("createEndpoint")}
              </Button>
              {way === "form" && spec !== undefined && (
                <Button
                  icon={<Download size={15} aria-hidden="true" />}
                  onClick={() => save(`${spec.name}.yaml`, [manifest], "application/yaml")}
                >
                  {t("saveAsFile")}
                </Button>
              )}
            </div>
            {way === "form" && manifest !== "" && (
              <>
                <h3>{t("sameAsFile")}</h3>
                <Code code={manifest} language="yaml" label={t("manifest")} />
              </>
            )}
          </div>
        </Card>
      </div>
    </Page>
  );
}

function Fields({
  form,
  change,
  errors,
  projects,
}: {
  form: EndpointForm;
  change: (changes: Partial<EndpointForm>) => void;
  errors: Partial<Record<keyof EndpointForm, string>>;
  projects: readonly string[];
}) {
  const field = (name: keyof EndpointForm, label: Key, help?: Key) => ({
    label: t(label),
    help: help && t(help),
    error: errors[name],
    value: form[name],
    onChange: (value: string) => change({ [name]: value }),
  });
  return (
    <div className="grid gap-4 lg:grid-cols-2">
      <Card title={t("whatServes")} className="lg:col-span-2">
        <div className="grid gap-3 sm:grid-cols-2">
          <TextField {...field("name", "name", "endpointNameHelp")} autoFocus />
          {projects.length > 1 ? (
            <Select
              {...field("project", "project")}
              placeholder={t("chooseProject")}
              options={projects.map((value) => ({ value, label: value }))}
            />
          ) : (
            <TextField {...field("image", "image", "hostRoot")} />
          )}
          {projects.length > 1 && <TextField {...field("image", "image", "hostRoot")} />}
          <TextArea {...field("command", "command", "commandHelp")} mono rows={2} className="sm:col-span-2" />
          <div className="grid gap-3 sm:col-span-2 sm:grid-cols-3">
            <TextField {...field("port", "port", "portHelp")} inputMode="numeric" />
            <Select
              label={t("protocol")}
              value={form.protocol}
              onChange={(protocol) => change({ protocol })}
              options={[
                { value: "http1", label: "HTTP/1.1" },
                { value: "http2", label: "HTTP/2" },
                { value: "grpc", label: "gRPC" },
              ]}
            />
            <TextField {...field("readiness", "readinessPath", "readinessHelp")} placeholder="/health" />
          </div>
        </div>
      </Card>
      <Card title={t("perReplica")}>
        <div className="grid grid-cols-2 gap-3">
          <TextField {...field("cpu", "cpu")} />
          <TextField {...field("mem", "memory")} />
          <TextField {...field("gpu", "gpus", "emptyNone")} inputMode="numeric" />
          <TextField {...field("concurrency", "maxConcurrency", "zeroNoLimit")} inputMode="numeric" />
        </div>
      </Card>
      <Card title={t("howMany")}>
        <div className="grid grid-cols-2 gap-3">
          <TextField {...field("min", "fewestReplicas", "zeroSleeps")} inputMode="numeric" />
          <TextField {...field("max", "mostReplicas")} inputMode="numeric" />
        </div>
      </Card>
      <Card title={t("whoMayCall")}>
        <div className="flex flex-col items-start gap-2">
          <Choice
            label={t("whoMayCall")}
            value={form.access}
            onChange={(access) => change({ access })}
            options={[
              { value: "token", label: t("withToken") },
              { value: "public", label: t("anyone") },
            ]}
          />
          <p className="text-sm text-quiet">{t(form.access === "public" ? "anyoneHelp" : "withTokenHelp")}</p>
        </div>
      </Card>
      <Card title={t("newRevisions")}>
        <div className="flex flex-col gap-3">
          <Select
            label={t("rolloutWay")}
            value={form.strategy}
            onChange={(strategy) => change({ strategy })}
            options={[
              { value: "rolling", label: t("rolling") },
              { value: "blueGreen", label: t("blueGreen") },
              { value: "canary", label: t("canary") },
            ]}
          />
          {form.strategy === "canary" && (
            <div className="grid grid-cols-2 gap-3">
              <TextField {...field("steps", "canarySteps", "canaryStepsHelp")} />
              <TextField {...field("hold", "canaryHold", "canaryHoldHelp")} inputMode="numeric" />
            </div>
          )}
        </div>
      </Card>
    </div>
  );
}
