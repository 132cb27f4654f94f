import { Ellipsis, History, Pencil, Play, Trash2 } from "lucide-react";
import { Badge } from "../../design/badge";
import { ButtonLink, IconButton } from "../../design/button";
import { Menu, MenuItem, MenuSeparator } from "../../design/menu";
import { ClusterMode, type SessionSpec, SessionType } from "../../gen/retinue/manager/v1/session_pb";
import type { Template } from "../../gen/retinue/manager/v1/template_service_pb";
import { quoted } from "../../spec/words";
import { amounts, moment } from "../../text/format";
import { type Key, t } from "../../text/language";

const TYPES: Partial<Record<SessionType, Key>> = {
  [SessionType.INTERACTIVE]: "interactive",
  [SessionType.BATCH]: "batch",
  [SessionType.INFERENCE]: "inference",
  [SessionType.SYSTEM]: "system",
};

/** A template with what it asks for, and what can be done with it. */
export function TemplateCard({
  template,
  mayChange,
  onShow,
  onEdit,
  onDelete,
}: {
  template: Template;
  mayChange: boolean;
  onShow: () => void;
  onEdit: () => void;
  onDelete: () => void;
}) {
  const { name, spec } = template;
  const type = spec && TYPES[spec.type];
  const command = spec?.kernel?.command.map(quoted).join(" ") ?? "";
  const kernels = spec === undefined ? 1 : kernelsOf(spec);
  return (
    <li className="flex min-w-0 flex-col rounded-lg border border-line bg-card">
      <div className="flex grow flex-col gap-2 p-4">
        <div className="flex items-start gap-2">
          <h2 className="min-w-0 grow truncate" title={name}>
            {name}
          </h2>
          <Menu
            trigger={
              <IconButton label={t("templateActions", { name })} size="small">
                <Ellipsis size={17} aria-hidden="true" />
              </IconButton>
            }
          >
            <MenuItem icon={<History size={15} aria-hidden="true" />} onSelect={onShow}>
              {t("showVersions")}
            </MenuItem>
            <MenuItem icon={<Pencil size={15} aria-hidden="true" />} onSelect={onEdit} disabled={!mayChange}>
              {t("edit")}
            </MenuItem>
            <MenuSeparator />
            <MenuItem icon={<Trash2 size={15} aria-hidden="true" />} onSelect={onDelete} disabled={!mayChange} danger>
              {t("delete")}
            </MenuItem>
          </Menu>
        </div>
        <p className="line-clamp-2 wrap-anywhere text-quiet" title={template.description}>
          {template.description || t("noDescription")}
        </p>
        <div className="flex flex-wrap gap-1.5">
          {type !== undefined && <Badge tone="accent">{t(type)}</Badge>}
          {kernels > 1 && (
            <Badge>{t(spec?.clusterMode === ClusterMode.MULTI_NODE ? "multi" : "single", { size: kernels })}</Badge>
          )}
          {spec?.apps.map((app) => (
            <Badge key={app.name}>{app.name}</Badge>
          ))}
          <Badge>{template.forAllProjects ? t("ofAllProjects") : template.project}</Badge>
        </div>
        <dl className="grid grid-cols-[auto_minmax(0,1fr)] gap-x-3 gap-y-0.5 text-sm">
          <Entry name={t("perKernel")} value={amounts(spec?.kernel?.slots ?? {})} />
          <Entry name={t("image")} value={spec?.kernel?.image ?? ""} code />
          <Entry name={t("command")} value={command} code />
        </dl>
      </div>
      <div className="flex items-center gap-2 border-t border-line px-4 py-2.5">
        <span className="min-w-0 grow truncate text-xs text-quiet" title={moment(template.updateTime)}>
          {t("versionBy", { version: template.version, author: template.author })}
        </span>
        <ButtonLink
          to={`/sessions/new?template=${encodeURIComponent(name)}`}
          size="small"
          look="primary"
          icon={<Play size={14} aria-hidden="true" />}
          aria-label={t("startFromTemplate", { name })}
        >
          {t("start")}
        </ButtonLink>
      </div>
    </li>
  );
}

function kernelsOf(spec: SessionSpec): number {
  const counted = spec.roles.filter((role) => role.count !== undefined);
  if (spec.clusterSize > 0 || counted.length === 0) return spec.clusterSize || 1;
  return 1 + counted.reduce((sum, role) => sum + (role.role === "main" ? 0 : (role.count ?? 0)), 0);
}

function Entry({ name, value, code = false }: { name: string; value: string; code?: boolean }) {
  if (value === "") return null;
  return (
    <>
      <dt className="text-quiet">{name}</dt>
      <dd className="truncate" title={value}>
        {code ? <code>{value}</code> : value}
      </dd>
    </>
  );
}
