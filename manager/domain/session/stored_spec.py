"""The request of a session as it is stored: by this version of the manager, or by another one, or damaged. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from retinue.manager.domain.session.apps import AppSpec, stored_app
from retinue.manager.domain.session.isolation import Isolation, implied
from retinue.manager.domain.session.service_ports import PortRange, Reachable, ServicePortSpec, reachable, stored_port
from retinue.manager.domain.session.spec import (
    DEFAULT_GRACE_SECONDS,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    UnreadableSpecError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """A request as stored. Each member is read when it is asked for, so that it matters only
    there whether it can be read.

    Those that may fail raise UnreadableSpecError.
    """

    document: object

    def read(self) -> SessionSpec:
        """Returns the request. Raises UnreadableSpecError."""
        return SessionSpec.from_json(self.document)

    def image(self, role: str) -> str:
        """Returns the reference of the image for kernels of a role; empty when that cannot be read. Never raises."""
        for kernel in (_member(_member(self.document, "roles"), role), _member(self.document, "kernel")):
            if reference := _member(kernel, "image"):
                return str(reference)
        return ""

    def isolation(self, role: str) -> Isolation:
        """Returns the isolation of kernels of a role. Raises UnreadableSpecError."""
        stored = self._read("isolations", lambda isolations: isolations.get(role), absent=None)
        try:
            return Isolation(stored) if stored else implied(self.image(role))
        except ValueError as error:
            raise UnreadableSpecError(str(error)) from error

    def working_directory(self, role: str) -> str:
        """Returns where the command of kernels of a role is asked to start; empty when it is not. Never raises."""
        for kernel in (_member(_member(self.document, "roles"), role), _member(self.document, "kernel")):
            if directory := _member(kernel, "working_directory"):
                return str(directory)
        return ""

    def text(self, name: str) -> str:
        """Returns a member that is a text; empty when it is none. Never raises."""
        return value if isinstance(value := _member(self.document, name), str) else ""

    @property
    def is_held(self) -> bool:
        """Returns whether it waits until a caller releases it. Never raises."""
        return _member(self.document, "hold") is True

    @property
    def is_retried(self) -> bool:
        """Returns whether it has a policy for running it again, readable or not. Never raises."""
        return bool(_member(self.document, "retry"))

    @property
    def serves_files(self) -> bool:
        """Returns whether its files are served by SFTP. Never raises."""
        return _member(self.document, "sftp") is not None

    @property
    def images(self) -> list[str]:
        """Returns the references of the images that it asks for."""
        of_roles: list[str] = self._read("roles", lambda roles: [kernel["image"] for kernel in roles.values()])
        return [image for image in (self._read("kernel", lambda kernel: kernel["image"]), *of_roles) if image]

    @property
    def bootstraps(self) -> bool:
        """Returns whether its kernels run a script before their command."""
        return self._read("bootstrap_script", bool, absent=False)

    @property
    def retry(self) -> RetryPolicy | None:
        """Returns the policy for running it again."""
        return self._read("retry", lambda retry: RetryPolicy(**retry) if retry else None, absent=None)

    @property
    def preemptible(self) -> bool:
        """Returns whether others may take its place."""
        return self._read("preemptible", bool, absent=False)

    @property
    def grace_seconds(self) -> float:
        """Returns the seconds that its kernels have to end by themselves."""
        return self._read("grace_seconds", float, absent=DEFAULT_GRACE_SECONDS)

    @property
    def mounts(self) -> list[MountSpec]:
        """Returns the directories that it mounts."""
        return self._read("mounts", lambda mounts: [MountSpec(**mount) for mount in mounts], absent=[])

    @property
    def apps(self) -> tuple[AppSpec, ...]:
        """Returns the apps that can be started in its main kernel."""
        return self._read("apps", lambda apps: tuple(map(stored_app, apps)), absent=())

    def reachable(self, of_image: Sequence[ServicePortSpec]) -> Reachable:
        """Returns the ports that it and the labels of `main1`'s image declare."""
        return reachable(
            self._read("service_ports", lambda ports: list(map(stored_port, ports)), absent=[]),
            self._read("preopen_ports", lambda ranges: [PortRange(**ports) for ports in ranges], absent=[]),
            of_image,
        )

    def _read(self, name: str, read: Callable[[Any], T], **absent: T) -> T:
        try:
            if not isinstance(self.document, Mapping):
                raise TypeError("it is no mapping")
            return absent["absent"] if absent and name not in self.document else read(self.document[name])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnreadableSpecError(f"its {name} cannot be read: {type(error).__name__}: {error}") from error


def _member(stored: object, key: str) -> object:
    return stored.get(key) if isinstance(stored, Mapping) else None
