import { Rocket } from "lucide-react";
import { Suspense, useMemo, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { sessions } from "../api/client";
import { type Problem, problemOf } from "../api/problem";
import { Button } from "../design/button";
import { Card } from "../design/card";
import { notify } from "../design/notify";
import { Page } from "../design/page";
import { Trouble } from "../parts/basics";
import { lazy } from "../parts/lazy";
import { useLoaded } from "../parts/store";
import { changed, EMPTY, type Form, readForm } from "../spec/form";
import { elsewhere, refusalsOf } from "../spec/refusals";
import { slotRanges } from "../spec/sizes";
import { t } from "../text/language";
import { Amounts } from "./new/amounts";
import { loadChoices, NO_CHOICES } from "./new/choices";
import { DETAIL_PLACES, type Detail, Details } from "./new/details";
import { Nodes } from "./new/nodes";
import { Reasons, Verdict } from "./new/outcome";
import { Place } from "./new/place";
import { usePreview } from "./new/preview";
import { Program } from "./new/program";
import { SameAs } from "./new/same_as";
import { type Start, started } from "./new/starts";

const TemplateEditor = lazy(() => import("./templates/editor"));

/** Places in the spec that have a field on this page; what is refused elsewhere is said beside the button. */
const SHOWN = [
  "name",
  "project",
  "resource_group",
  "cluster_size",
  "kernel.command",
  "kernel.image",
  "kernel.isolation",
  "kernel.slots",
  ...DETAIL_PLACES,
];

export default function NewSession() {
  const navigate = useNavigate();
  const [parameters] = useSearchParams();
  const wanted = parameters.get("template");
  const [start, setStart] = useState<Start>(wanted === null ? "shell" : `template:${wanted}`);
  const [form, setForm] = useState<Form>(() => started(EMPTY, start));
  const [detail, setDetail] = useState<Detail>("mounts");
  const [refused, setRefused] = useState<{ form: Form; problem: Problem }>();
  const [busy, setBusy] = useState(false);
  const [saving, setSaving] = useState(false);
  const change = (part: Partial<Form>) => setForm((before) => ({ ...before, ...part }));

  const loaded = useLoaded("new", loadChoices, 10);
  const choices = loaded.value ?? NO_CHOICES;
  const base = choices.templates.find(({ name }) => name === form.template)?.spec;
  const group = form.group || base?.resourceGroup || "default";
  const agents = useMemo(() => choices.agents.filter((agent) => agent.resourceGroup === group), [choices, group]);
  const ranges = useMemo(() => slotRanges(agents), [agents]);
  const { spec, refusals: unreadable } = useMemo(() => readForm(form), [form]);
  const preview = usePreview(spec);
  // What a launch was refused for stands until something is changed.
  const problem = refused?.form === form ? refused.problem : undefined;
  const refusals = {
    ...(preview.current ? refusalsOf(preview.problem) : {}),
    ...refusalsOf(problem),
    ...unreadable,
  };
  const others = elsewhere(refusals, SHOWN);

  const launch = async () => {
    if (spec === undefined || busy) return;
    setBusy(true);
    try {
      const { session } = await sessions.createSession({ spec, requestId: crypto.randomUUID() });
      notify(t("launched", { name: session?.spec?.name ?? "" }));
      navigate(`/sessions/${session?.id}`);
    } catch (error) {
      setRefused({ form, problem: problemOf(error) });
      setBusy(false);
    }
  };

  const section = { form, change, base, refusals, choices };
  return (
    <Page title={t("newSession")} crumbs={[{ label: t("sessions"), to: "/sessions" }]}>
      <Trouble problem={loaded.problem} retry={loaded.reload} />
      <form
        className="grid grid-cols-1 items-start gap-4 xl:grid-cols-[minmax(0,2fr)_minmax(21rem,1.1fr)]"
        onSubmit={(event) => {
          event.preventDefault();
          void launch();
        }}
      >
        <div className="grid min-w-0 grid-cols-1 items-start gap-4 lg:grid-cols-2">
          <Program
            {...section}
            start={start}
            onStart={(next) => {
              setStart(next);
              setForm((before) => started(before, next));
              if (next === "web") setDetail("ports");
              if (next === "files") setDetail("mounts");
              if (next === "batch") setDetail("limits");
            }}
          />
          <div className="flex min-w-0 flex-col gap-4">
            <Amounts {...section} ranges={ranges} />
            <Place {...section} />
          </div>
          <div className="min-w-0 lg:col-span-2">
            <Details {...section} selected={detail} onSelect={setDetail} />
          </div>
        </div>
        <div className="flex min-w-0 flex-col gap-4 max-xl:contents xl:sticky xl:top-4">
          <div className="flex flex-col gap-3 rounded-lg border border-line bg-card p-3 max-xl:sticky max-xl:bottom-0 max-xl:z-10 max-xl:order-last max-xl:shadow-pop">
            <div className="flex items-center gap-3">
              <Verdict preview={preview} readable={spec !== undefined} />
              <Button
                type="submit"
                look="primary"
                size="large"
                icon={<Rocket size={17} aria-hidden="true" />}
                busy={busy}
                disabled={spec === undefined}
              >
                {t("launch")}
              </Button>
            </div>
            {problem !== undefined && problem.fields.length === 0 && <Trouble problem={problem} />}
            {others.length > 0 && (
              <ul className="text-sm text-bad">
                {others.map((words) => (
                  <li key={words}>{words}</li>
                ))}
              </ul>
            )}
          </div>
          <Card title={t("whatHappens")}>
            <div className="flex flex-col gap-3">
              <Reasons preview={preview} onApply={(wish) => setForm((before) => changed(before, wish) ?? before)} />
              <Nodes
                agents={agents}
                placements={preview.outcome?.kernels ?? []}
                slots={{ ...base?.kernel?.slots, ...form.slots }}
              />
            </div>
          </Card>
          {spec !== undefined && (
            <div className="min-w-0">
              <SameAs spec={spec} onSave={() => setSaving(true)} />
            </div>
          )}
        </div>
      </form>
      {saving && spec !== undefined && (
        <Suspense>
          <TemplateEditor spec={spec} onClose={() => setSaving(false)} onSaved={() => setSaving(false)} />
        </Suspense>
      )}
    </Page>
  );
}
