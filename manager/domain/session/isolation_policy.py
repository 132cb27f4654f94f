"""The isolation of each kernel of a session, by its request and the policy of its resource group. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.session.isolation import KERNELS, Isolation, implied
from retinue.manager.domain.session.usage import CUDA
from retinue.rpc.core.amounts import MEMORY, MIN_VM_MEMORY, format_amount, parse_amount

if TYPE_CHECKING:
    from retinue.manager.domain.session.spec import KernelSpec, SessionSpec

Violations = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """The isolations that a resource group allows, none for all, and that of kernels which ask for none;
    texts as stored.
    """

    allowed: Collection[str] = ()
    default: str = ""

    def isolation(self, spec: SessionSpec, role: str) -> Isolation:
        """Returns the isolation of the kernels of a role."""
        kernel = spec.of_role(role)
        if kernel.isolation is not None:
            return kernel.isolation
        if self.default and spec.sftp is None:
            return Isolation(self.default)
        return implied(kernel.image)

    def resolve(self, spec: SessionSpec) -> Mapping[str, Isolation]:
        """Returns the isolations that a request is stored with, by role: those that its images do not imply."""
        found = {role: self.isolation(spec, role) for role, _ in spec.layout}
        return {role: isolation for role, isolation in found.items() if isolation is not spec.implied_isolation(role)}

    def violations(self, spec: SessionSpec, group: str) -> Violations:
        """Returns what is wrong with the isolations of a request: (field path, description)."""
        violations: Violations = []
        positions = {role: position for position, role in enumerate(spec.roles)}
        for role, _ in spec.layout:
            own, kernel, isolation = spec.roles.get(role), spec.of_role(role), self.isolation(spec, role)
            by_role = own is not None and (own.isolation is not None or own.image)
            path = f"spec.roles[{positions[role]}].kernel" if by_role else "spec.kernel"
            why = (
                f"with isolation {isolation.lower()}"
                if kernel.isolation is not None
                else f"in resource group {group}, whose default isolation is {isolation.lower()}"
            )
            if self.allowed and isolation not in self.allowed and spec.sftp is None:
                violations.append(
                    (f"{path}.isolation", f"{not_allowed([isolation], group)} (allowed: {self._words()})")
                )
            elif isolation is Isolation.PROCESS and kernel.image:
                violations.append((f"{path}.image", f"must be empty {why}"))
            elif isolation is Isolation.CONTAINER and not kernel.image:
                violations.append((f"{path}.image", f"is required {why}"))
            elif isolation is Isolation.VM and _is_too_small(kernel):
                least = format_amount(MEMORY, MIN_VM_MEMORY)
                violations.append((_slot_path(spec, role, MEMORY), f"must be at least {least} {why}"))
            if isolation is not Isolation.CONTAINER and CUDA in kernel.slots:
                violations.append((_slot_path(spec, role, CUDA), _no_gpus(kernel, isolation, why)))
        return list(dict.fromkeys(violations))

    def _words(self) -> str:
        return ", ".join(name.lower() for name in self.allowed)


def _slot_path(spec: SessionSpec, role: str, slot: str) -> str:
    own = spec.roles.get(role)
    path = "spec.kernel"
    if own is not None and slot in own.slots:
        path = f"spec.roles[{list(spec.roles).index(role)}].kernel"
    return f"{path}.slots['{slot}']"


def _no_gpus(kernel: KernelSpec, isolation: Isolation, why: str) -> str:
    if kernel.isolation is None and not kernel.image:
        return f"needs an image (`--image`): {KERNELS[isolation]} have no GPUs"
    return f"must be left out {why}: {KERNELS[isolation]} have no GPUs"


def _is_too_small(kernel: KernelSpec) -> bool:
    return MEMORY in kernel.slots and parse_amount(MEMORY, kernel.slots[MEMORY]) < MIN_VM_MEMORY


def not_allowed(isolations: Collection[Isolation], group: str) -> str:
    """Returns in words that a resource group does not allow kernels of these isolations."""
    return f"resource group {group} does not allow {' and '.join(KERNELS[isolation] for isolation in isolations)}"
