"""What queries read of a spec, as columns of its session and kernels: written wherever the spec is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.session.isolation import Isolation

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from retinue.manager.domain.session.spec import SessionSpec


def members(record: DataclassInstance) -> dict[str, Any]:
    """Returns columns by their names; what they hold is not copied."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


@dataclass(frozen=True, slots=True)
class PlacementColumns:
    """Columns of a session, by their names, that scheduling reads: fields of its spec, and what follows from them."""

    hold: bool
    # Seconds since 1970.
    earliest_start_time: float | None
    agents: Sequence[str]
    agents_strict: bool
    architecture: str
    replica_placement: str
    time_limit_seconds: float | None
    # Whether it is served by SFTP.
    sftp: bool

    @staticmethod
    def of(spec: SessionSpec) -> PlacementColumns:
        """Returns the columns of a spec."""
        return PlacementColumns(
            hold=spec.hold,
            earliest_start_time=spec.earliest_start_time,
            agents=spec.agents,
            agents_strict=spec.agents_strict,
            architecture=spec.architecture,
            replica_placement=spec.replica_placement,
            time_limit_seconds=spec.time_limit_seconds,
            sftp=spec.sftp is not None,
        )


@dataclass(frozen=True, slots=True)
class SpecColumns(PlacementColumns):
    """All columns of a session that are written from its spec, but for the spec itself."""

    labels: Mapping[str, str]
    grace_seconds: float
    preemptible: bool
    # Attempts in all: 1 without a retry policy.
    max_attempts: int

    @staticmethod
    def of(spec: SessionSpec) -> SpecColumns:
        """Returns the columns of a spec."""
        return SpecColumns(
            **members(PlacementColumns.of(spec)),
            labels=spec.labels,
            grace_seconds=spec.grace_seconds,
            preemptible=spec.preemptible,
            max_attempts=1 if spec.retry is None else spec.retry.max_attempts,
        )


@dataclass(frozen=True, slots=True)
class KernelColumns:
    """Columns of a kernel, by their names: the reference of its image, empty for none, and its isolation."""

    image: str
    isolation: Isolation

    @classmethod
    def of(cls, spec: SessionSpec, role: str) -> KernelColumns:
        """Returns the columns of the kernels of a role, of a spec that was accepted."""
        return cls(spec.of_role(role).image, spec.isolation_of(role))
