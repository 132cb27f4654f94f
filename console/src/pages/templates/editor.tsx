import { create } from "@bufbuild/protobuf";
import { useContext, useEffect, useState } from "react";
import { type Problem, problemOf } from "../../api/problem";
import { templates } from "../../api/templates";
import { Button } from "../../design/button";
import { Dialog } from "../../design/dialog";
import { Diff } from "../../design/diff";
import { Checkbox, Select, TextArea, TextField } from "../../design/fields";
import { notify } from "../../design/notify";
import { UserRole } from "../../gen/retinue/manager/v1/account_service_pb";
import { type SessionSpec, SessionSpecSchema, SessionType } from "../../gen/retinue/manager/v1/session_pb";
import { type Template, TemplateSchema } from "../../gen/retinue/manager/v1/template_service_pb";
import { Trouble } from "../../parts/basics";
import { CallerContext } from "../../parts/caller";
import { refusalOf, refusalsOf } from "../../spec/refusals";
import { specOfText, yamlOf } from "../../spec/text";
import { t } from "../../text/language";

const CHECK_MS = 400;
const NEAR = 2;
const FIRST = create(SessionSpecSchema, {
  type: SessionType.INTERACTIVE,
  kernel: { slots: { cpu: "1", mem: "256m" } },
});
const MASK = { paths: ["description", "spec"] };

/**
 * Makes a template, of a request when one is given, or a new version of one. What is written is checked by the server
 * as it is written, and the lines that differ are shown before they are saved.
 */
export default function TemplateEditor({
  template,
  spec,
  onClose,
  onSaved,
}: {
  template?: Template;
  spec?: SessionSpec;
  onClose: () => void;
  onSaved: () => void;
}) {
  const caller = useContext(CallerContext);
  const projects = caller.memberships.map(({ project }) => project);
  const [name, setName] = useState(template?.name ?? spec?.name ?? "");
  const [description, setDescription] = useState(template?.description ?? "");
  const [project, setProject] = useState(spec?.project || projects[0] || "");
  const [forAll, setForAll] = useState(false);
  const [before] = useState(() => yamlOf(template?.spec ?? FIRST));
  const [text, setText] = useState(before);
  const [checked, setChecked] = useState<{ draft: string; problem?: Problem; words?: string }>();
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);

  // A request that comes of a template is written out: a template has none of its own.
  useEffect(() => {
    if (spec === undefined) return;
    const stopping = new AbortController();
    const write = (whole: SessionSpec | undefined) => {
      if (whole === undefined || stopping.signal.aborted) return;
      setText(yamlOf({ ...whole, name: "", project: "", template: undefined }));
    };
    if (spec.template === undefined) write(spec);
    else
      templates.renderTemplate({ spec }, { signal: stopping.signal }).then(
        (answer) => write(answer.spec),
        () => {},
      );
    return () => stopping.abort();
  }, [spec]);

  const read = (): Template =>
    create(TemplateSchema, {
      ...(template === undefined
        ? { name: name.trim(), project: forAll ? "" : project, forAllProjects: forAll }
        : { id: template.id, etag: template.etag }),
      description: description.trim(),
      spec: specOfText(text),
    });
  const send = (draft: Template, validateOnly: boolean) =>
    template === undefined
      ? templates.createTemplate({ template: draft, validateOnly, requestId: validateOnly ? "" : crypto.randomUUID() })
      : templates.updateTemplate({ template: draft, updateMask: MASK, validateOnly });

  const draft = JSON.stringify([name, description, project, forAll, text]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `draft` is all that is read
  useEffect(() => {
    let late = false;
    const timer = setTimeout(async () => {
      let found: { problem?: Problem; words?: string } = {};
      try {
        const wanted = read();
        try {
          await send(wanted, true);
        } catch (error) {
          found = { problem: problemOf(error) };
        }
      } catch (error) {
        found = { words: error instanceof Error ? error.message : String(error) };
      }
      if (!late) setChecked({ draft, ...found });
    }, CHECK_MS);
    return () => {
      late = true;
      clearTimeout(timer);
    };
  }, [draft]);

  const save = async () => {
    setBusy(true);
    try {
      const { template: saved } = await send(read(), false);
      notify(
        template === undefined
          ? t("templateMade", { name: saved?.name ?? name })
          : t("templateChanged", { name: saved?.name ?? "", version: saved?.version ?? 0 }),
      );
      onSaved();
    } catch (error) {
      setProblem(problemOf(error));
      setBusy(false);
    }
  };

  // Nothing is said about a name before one is written.
  const refusals = refusalsOf(checked?.problem);
  const nameRefused = name === "" ? undefined : refusalOf(refusals, "template.name");
  const specRefused =
    checked?.words ??
    (Object.entries(refusals)
      .filter(([place]) => !place.startsWith("template."))
      .map(([place, words]) => `${place}: ${words}`)
      .join("\n") ||
      undefined);
  const general = problem ?? (checked?.problem?.fields.length === 0 ? checked.problem : undefined);
  const differs = template !== undefined && before.trimEnd() !== text.trimEnd();
  const same = template !== undefined && !differs && description.trim() === template.description;
  return (
    <Dialog
      wide
      title={template === undefined ? t("newTemplate") : t("editTemplate", { name: template.name })}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button
            look="primary"
            busy={busy}
            disabled={same || checked?.draft !== draft || checked.problem !== undefined || checked.words !== undefined}
            onClick={() => void save()}
          >
            {template === undefined ? t("create") : t("saveVersion", { version: template.version + 1 })}
          </Button>
        </>
      }
    >
      <div className="grid grid-cols-1 gap-3 sm:grid-cols-2">
        {template === undefined && (
          <TextField
            label={t("name")}
            help={t("templateNameHelp")}
            error={nameRefused}
            value={name}
            onChange={setName}
          />
        )}
        <TextField
          label={t("description")}
          error={refusalOf(refusals, "template.description")}
          value={description}
          onChange={setDescription}
        />
        {template === undefined && projects.length > 1 && !forAll && (
          <Select
            label={t("project")}
            value={project}
            onChange={setProject}
            options={projects.map((one) => ({ value: one, label: one }))}
          />
        )}
        {template === undefined && caller.role === UserRole.ADMIN && (
          <Checkbox label={t("forAllProjects")} checked={forAll} onChange={setForAll} />
        )}
      </div>
      <TextArea
        label={t("templateSpec")}
        help={t("templateSpecHelp")}
        error={specRefused}
        mono
        rows={14}
        value={text}
        onChange={setText}
      />
      {differs && (
        <div className="flex flex-col gap-1">
          <h3>{t("whatChanges")}</h3>
          <Diff label={t("whatChanges")} before={before} after={text} near={NEAR} />
        </div>
      )}
      <Trouble problem={general} />
    </Dialog>
  );
}
