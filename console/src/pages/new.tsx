import { type ReactNode, useEffect, useMemo, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { accounts, allPages, sessions } from "../api/client";
import { fleet } from "../api/fleet";
import { type Problem, problemOf } from "../api/problem";
import { templates } from "../api/templates";
import { type Quota, QuotaKind } from "../gen/retinue/manager/v1/account_service_pb";
import { type Agent, AgentState } from "../gen/retinue/manager/v1/fleet_service_pb";
import { ClusterMode, type SessionSpec, SessionType } from "../gen/retinue/manager/v1/session_pb";
import type { CreateSessionResponse, RequestChange } from "../gen/retinue/manager/v1/session_service_pb";
import { Isolation } from "../gen/retinue/types/v1/isolation_pb";
import { CopyButton, Labelled, Meter, Tabs, Trouble } from "../parts/basics";
import { useLoaded } from "../parts/store";
import { type Commands, commandsFor } from "../spec/commands";
import { changed, EMPTY, type Form, specOf } from "../spec/form";
import { UnreadableText } from "../spec/words";
import { amount, amounts, amountText, COMMON_SLOTS } from "../text/format";
import { t } from "../text/language";

const TYPES = [
  [SessionType.INTERACTIVE, "interactive"],
  [SessionType.BATCH, "batch"],
  [SessionType.SYSTEM, "system"],
] as const;
const ISOLATIONS = [Isolation.PROCESS, Isolation.CONTAINER, Isolation.VM];
const PREVIEW_MS = 300;

export default function NewSession() {
  const navigate = useNavigate();
  const [parameters] = useSearchParams();
  const [form, setForm] = useState<Form>({ ...EMPTY, template: parameters.get("template") ?? "" });
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const set = <F extends keyof Form>(field: F, value: Form[F]) => setForm((before) => ({ ...before, [field]: value }));

  const found = useLoaded("new", loadChoices, 10);
  const agents = (found.value?.agents ?? []).filter((agent) => agent.resourceGroup === (form.group || "default"));
  const free = useMemo(() => freeSlots(agents), [agents]);
  const { spec, unreadable } = useMemo(() => read(form), [form]);
  const preview = usePreview(spec);

  const launch = async () => {
    if (spec === undefined) return;
    setBusy(true);
    try {
      const { session } = await sessions.createSession({ spec, requestId: crypto.randomUUID() });
      navigate(`/sessions/${session?.id}`);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };

  const slots = [...new Set([...COMMON_SLOTS, ...free.keys()])];
  const size = Number(form.clusterSize) || 1;
  return (
    <form
      className="new"
      onSubmit={(event) => {
        event.preventDefault();
        void launch();
      }}
    >
      <h1>{t("newSession")}</h1>
      <Trouble problem={found.problem} retry={found.reload} />
      <fieldset>
        <Choice
          label={t("type")}
          name="type"
          value={form.type}
          onChange={(value) => set("type", value)}
          choices={TYPES}
        />
        <Labelled label={t("template")}>
          <select
            value={form.template}
            onChange={(event) =>
              setForm((before) => ({
                ...before,
                template: event.target.value,
                // What the template has holds, until something else is written here.
                slots: event.target.value === "" ? EMPTY.slots : {},
                clusterSize: event.target.value === "" ? "1" : "",
                clusterMode: event.target.value === "" ? ClusterMode.SINGLE_NODE : ClusterMode.UNSPECIFIED,
              }))
            }
          >
            <option value="">{t("fromNothing")}</option>
            {found.value?.templates.map((template) => (
              <option key={template.id} value={template.name}>
                {template.name} {template.description && `· ${template.description}`}
              </option>
            ))}
          </select>
        </Labelled>
        <Text label={t("name")} value={form.name} onChange={(value) => set("name", value)} />
        <Text label={t("image")} help={t("hostRoot")} value={form.image} onChange={(value) => set("image", value)} />
        <Text
          label={t("command")}
          help={t("commandHelp")}
          value={form.command}
          onChange={(value) => set("command", value)}
        />
        <Text
          label={t("workingDirectory")}
          help={t("workingDirectoryHelp")}
          value={form.directory}
          onChange={(value) => set("directory", value)}
        />
        <Labelled label={t("isolation")}>
          <select value={form.isolation} onChange={(event) => set("isolation", Number(event.target.value))}>
            <option value={Isolation.UNSPECIFIED}>{t("asGroup")}</option>
            {ISOLATIONS.map((isolation) => (
              <option key={isolation} value={isolation}>
                {Isolation[isolation]?.toLowerCase()}
              </option>
            ))}
          </select>
        </Labelled>
        <Lines
          label={t("mounts")}
          help={t("mountsHelp")}
          value={form.mounts}
          onChange={(value) => set("mounts", value)}
        />
        <Lines
          label={t("environment")}
          help={t("environmentHelp")}
          value={form.environment}
          onChange={(value) => set("environment", value)}
        />
        <Lines label={t("ports")} help={t("portsHelp")} value={form.ports} onChange={(value) => set("ports", value)} />
      </fieldset>
      <fieldset>
        <Choice
          label={t("clusterMode")}
          name="mode"
          value={form.clusterMode}
          onChange={(value) => set("clusterMode", value)}
          choices={[
            [ClusterMode.SINGLE_NODE, "singleNode"],
            [ClusterMode.MULTI_NODE, "multiNode"],
          ]}
        />
        <Labelled label={t("clusterSize")} help={t("containers")}>
          <input
            type="number"
            min={1}
            max={1024}
            value={form.clusterSize}
            onChange={(event) => set("clusterSize", event.target.value)}
          />
        </Labelled>
        <h2>{t("perKernel")}</h2>
        {slots.map((slot) => {
          const amountsHere = free.get(slot);
          return (
            <Labelled
              key={slot}
              label={slot}
              help={
                amountsHere &&
                t("freeInGroup", {
                  free: amountText(slot, amountsHere.free),
                  all: amountText(slot, amountsHere.all),
                })
              }
            >
              <input
                value={form.slots[slot] ?? ""}
                onChange={(event) => set("slots", { ...form.slots, [slot]: event.target.value })}
              />
            </Labelled>
          );
        })}
        <p>{t("inAll", { amounts: amounts(times(form.slots, size)) })}</p>
        <Quotas quotas={found.value?.quotas ?? []} />
        <Labelled label={t("group")}>
          <select value={form.group} onChange={(event) => set("group", event.target.value)}>
            <option value="">default</option>
            {found.value?.groups
              .filter((group) => group.name !== "default")
              .map((group) => (
                <option key={group.name}>{group.name}</option>
              ))}
          </select>
        </Labelled>
        <details>
          <summary>{t("startAndLimits")}</summary>
          <Text label={t("project")} value={form.project} onChange={(value) => set("project", value)} />
          <Text label={t("priority")} value={form.priority} onChange={(value) => set("priority", value)} />
          <Text
            label={t("timeLimit")}
            help={t("timeLimitHelp")}
            value={form.timeLimit}
            onChange={(value) => set("timeLimit", value)}
          />
          <Text
            label={t("dependsOn")}
            help={t("dependsOnHelp")}
            value={form.dependsOn}
            onChange={(value) => set("dependsOn", value)}
          />
          <Text label={t("attempts")} value={form.attempts} onChange={(value) => set("attempts", value)} />
          <Lines
            label={t("labels")}
            help={t("environmentHelp")}
            value={form.labels}
            onChange={(value) => set("labels", value)}
          />
          <Lines label={t("bootstrap")} value={form.bootstrap} onChange={(value) => set("bootstrap", value)} />
        </details>
      </fieldset>
      <section className="preview" aria-label={t("whatHappens")}>
        <h2>{t("whatHappens")}</h2>
        {unreadable && (
          <p role="alert" className="trouble">
            <code>{unreadable.field}</code>: {unreadable.message}
          </p>
        )}
        <Outcome preview={preview} onApply={(change) => setForm((before) => changed(before, change) ?? before)} />
        <Trouble problem={problem} />
        <button type="submit" className="primary launch" disabled={busy || spec === undefined}>
          {t("launch")}
        </button>
        {spec && <SameAs commands={commandsFor(spec)} />}
      </section>
    </form>
  );
}

async function loadChoices(signal: AbortSignal) {
  const [groups, agents, found, quotas] = await Promise.all([
    allPages(async (pageToken) => {
      const page = await fleet.listResourceGroups({ pageToken }, { signal });
      return { items: page.resourceGroups, nextPageToken: page.nextPageToken };
    }),
    allPages(async (pageToken) => {
      const page = await fleet.listAgents({ pageToken, pageSize: 500 }, { signal });
      return { items: page.agents, nextPageToken: page.nextPageToken };
    }).catch(() => [] as Agent[]),
    allPages(async (pageToken) => {
      const page = await templates.listTemplates({ pageToken }, { signal });
      return { items: page.templates, nextPageToken: page.nextPageToken };
    }),
    accounts.listQuotas({}, { signal }).then(
      (page) => page.quotas,
      () => [] as Quota[],
    ),
  ]);
  return { groups, agents, templates: found, quotas };
}

/** Sums of what agents that take kernels have, and have free, by slot. */
function freeSlots(agents: readonly Agent[]): Map<string, { free: number; all: number }> {
  const sums = new Map<string, { free: number; all: number }>();
  for (const agent of agents) {
    if (agent.state !== AgentState.ALIVE || agent.drained) continue;
    for (const [slot, capacity] of Object.entries(agent.capacity)) {
      const sum = sums.get(slot) ?? { free: 0, all: 0 };
      sum.all += amount(capacity);
      sum.free += amount(capacity) - amount(agent.occupied[slot] ?? "0");
      sums.set(slot, sum);
    }
  }
  return sums;
}

function times(slots: Record<string, string>, count: number): Record<string, string> {
  const entries = Object.entries(slots).filter(([, value]) => !Number.isNaN(amount(value)));
  return Object.fromEntries(entries.map(([slot, value]) => [slot, String(amount(value) * count)]));
}

function read(form: Form): { spec?: SessionSpec; unreadable?: UnreadableText } {
  try {
    return { spec: specOf(form) };
  } catch (error) {
    if (error instanceof UnreadableText) return { unreadable: error };
    throw error;
  }
}

type Preview =
  | { state: "checking" }
  | { state: "known"; answer: CreateSessionResponse }
  | { state: "refused"; problem: Problem };

/** Asks what would happen whenever the spec has changed and rests; the last answer wins. */
function usePreview(spec: SessionSpec | undefined): Preview {
  const [preview, setPreview] = useState<Preview>({ state: "checking" });
  useEffect(() => {
    if (spec === undefined) return;
    const stopping = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const answer = await sessions.createSession({ spec, validateOnly: true }, { signal: stopping.signal });
        if (!stopping.signal.aborted) setPreview({ state: "known", answer });
      } catch (error) {
        if (!stopping.signal.aborted) setPreview({ state: "refused", problem: problemOf(error) });
      }
    }, PREVIEW_MS);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [spec]);
  return preview;
}

function Outcome({ preview, onApply }: { preview: Preview; onApply: (change: RequestChange) => void }) {
  if (preview.state === "checking") return <p role="status">{t("checking")}</p>;
  if (preview.state === "refused") return <Trouble problem={preview.problem} />;
  const outcome = preview.answer.preview;
  if (outcome === undefined) return null;
  if (outcome.kernels.length > 0) {
    const byAgent = Map.groupBy(outcome.kernels, (kernel) => kernel.agent);
    return (
      <div role="status" className="outcome success">
        <p>✓ {t("startsNow")}</p>
        <ul>
          {[...byAgent].map(([agent, kernels]) => (
            <li key={agent}>
              {agent}: {kernels.map((kernel) => kernel.hostname).join(" ")}
            </li>
          ))}
        </ul>
      </div>
    );
  }
  return (
    <div role="status" className="outcome waiting">
      <p>◌ {t("wouldWait", { reason: outcome.reason })}</p>
      <p>{outcome.message}</p>
      <ul>
        {outcome.shortfalls.map((short) => (
          <li key={short.hostname + short.slot}>
            {short.hostname} {short.slot}: {short.requested} / {short.free} ({short.bestAgent})
          </li>
        ))}
      </ul>
      {outcome.wouldStartWith.length > 0 && (
        <>
          <p id="would-start-with">{t("wouldStartWith")}:</p>
          <ul aria-labelledby="would-start-with">
            {outcome.wouldStartWith.map((change) => (
              <li key={change.text}>
                {change.change.case === undefined ? (
                  change.text
                ) : (
                  <button type="button" onClick={() => onApply(change)}>
                    {change.text}
                  </button>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

function SameAs({ commands }: { commands: Commands }) {
  const [kind, setKind] = useState<keyof Commands>("cli");
  const items = [
    { id: "cli", label: "CLI" },
    { id: "python", label: "Python" },
    { id: "json", label: "JSON" },
    { id: "grpcurl", label: "grpcurl" },
  ] as const;
  return (
    <div className="same">
      <h3>{t("sameAs")}</h3>
      <Tabs label={t("sameAs")} items={items} selected={kind} onSelect={setKind} panel="same-text" />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by keys */}
      <pre id="same-text" role="tabpanel" aria-labelledby={`tab-${kind}`} tabIndex={0}>
        {commands[kind]}
      </pre>
      <CopyButton text={commands[kind]} />
    </div>
  );
}

function Quotas({ quotas }: { quotas: readonly Quota[] }) {
  const rows = quotas
    .filter((quota) => quota.kind === QuotaKind.USER || quota.kind === QuotaKind.PROJECT)
    .flatMap((quota) =>
      Object.entries(quota.slots).map(([slot, limit]) => ({
        key: `${quota.kind} ${quota.name} ${slot}`,
        name: quota.name,
        slot,
        limit: amount(limit),
        used: amount(quota.usage?.slots[slot] ?? "0"),
      })),
    );
  if (rows.length === 0) return null;
  return (
    <div>
      <h3>{t("quota")}</h3>
      {rows.map(({ key, name, slot, used, limit }) => (
        <Meter
          key={key}
          used={used}
          limit={limit}
          words={`${name} · ${slot} ${amountText(slot, used)} ${t("used")} / ${amountText(slot, limit)} ${t("limit")}`}
        />
      ))}
    </div>
  );
}

function Choice<T extends number>(props: {
  label: string;
  name: string;
  value: T;
  onChange: (value: T) => void;
  choices: readonly (readonly [T, Parameters<typeof t>[0]])[];
}): ReactNode {
  return (
    <fieldset className="choice">
      <legend>{props.label}</legend>
      {props.choices.map(([value, key]) => (
        <label key={value}>
          <input
            type="radio"
            name={props.name}
            checked={props.value === value}
            onChange={() => props.onChange(value)}
          />{" "}
          {t(key)}
        </label>
      ))}
    </fieldset>
  );
}

function Text(props: { label: string; help?: string; value: string; onChange: (value: string) => void }) {
  return (
    <Labelled label={props.label} help={props.help}>
      <input value={props.value} onChange={(event) => props.onChange(event.target.value)} spellCheck={false} />
    </Labelled>
  );
}

function Lines(props: { label: string; help?: string; value: string; onChange: (value: string) => void }) {
  return (
    <Labelled label={props.label} help={props.help}>
      <textarea
        rows={2}
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
        spellCheck={false}
      />
    </Labelled>
  );
}
