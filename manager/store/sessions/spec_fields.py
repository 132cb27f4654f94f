"""Members of a stored request, as this version knows them: one that has others was written by another version."""

from __future__ import annotations

# Those of `retinue.manager.domain.session.spec.SessionSpec`.
KNOWN = (
    "name", "project", "resource_group", "type", "single_node", "cluster_size", "priority", "kernel", "roles", "counts", "labels",
    "grace_seconds", "agents", "agents_strict", "architecture", "endpoint", "replica_placement", "time_limit_seconds", "preemptible",
    "bootstrap_script", "earliest_start_time", "depends_on", "retry", "mounts", "webhooks", "service_ports", "preopen_ports", "template", "apps",
    "sftp", "isolations", "hold", "runs_after", "stop_signal", "time_warning", "runs_after_failure",
    "runs_after_label",
)  # fmt: skip
# Those that no version leaves out.
REQUIRED = ("name", "project", "resource_group", "type", "kernel", "roles")


def readable(spec: str) -> str:
    """Returns the SQL of whether a stored request, which is also given as SQL,
    has the members that this version reads, and no others.
    """
    known, required = (", ".join(f"'{name}'" for name in names) for names in (KNOWN, REQUIRED))
    return (
        f"coalesce(CASE WHEN jsonb_typeof({spec}) = 'object' THEN {spec} ?& ARRAY[{required}] AND {spec} - ARRAY[{known}] = '{{}}' "
        f"AND jsonb_typeof({spec}->'kernel') = 'object' AND jsonb_typeof({spec}->'roles') = 'object' END, FALSE)"
    )


def held(spec: str) -> str:
    """Returns the SQL of whether a stored request, which is given as SQL,
    is not to be placed before a caller releases it.
    """
    return f"coalesce({spec}->>'hold' = 'true', FALSE)"


def json_number(value: str) -> str:
    """Returns the SQL of a number out of JSON, which is given as SQL; NULL when it is none."""
    return f"CASE WHEN jsonb_typeof({value}) = 'number' THEN ({value})::float8 END"
