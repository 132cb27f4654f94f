"""What kernels need of an agent, and which of its runtimes give that. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from functools import reduce
from ipaddress import ip_address
from operator import or_
from typing import TYPE_CHECKING

from retinue.manager.domain.session.isolation import KERNELS, Isolation
from retinue.rpc.core.amounts import DISK, MEMORY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from retinue.manager.domain.session.spec import SessionSpec

# What a kernel may need of an agent, in words, and the names of the agents' runtimes that give it.
FEATURES = (
    *(f"a runtime for {KERNELS[isolation]}" for isolation in (Isolation.PROCESS, Isolation.CONTAINER)),
    "OpenSSH's server for SFTP",
    f"a runtime for {KERNELS[Isolation.VM]}",
    f"a runtime for {KERNELS[Isolation.VM]} with images",
)
_NATIVE, _IMAGES, SFTP, _VM, _VM_IMAGES = 1, 2, 4, 8, 16
OF_ISOLATION = {Isolation.PROCESS: _NATIVE, Isolation.CONTAINER: _IMAGES, Isolation.VM: _VM | _VM_IMAGES}
_OFFERED = {
    "process": _NATIVE,
    "docker": _IMAGES,
    "kubernetes": _IMAGES,
    "sftp": SFTP,
    "vm": _VM,
    "vm-images": _VM_IMAGES,
    "null": (1 << len(FEATURES)) - 1,
}
# Behind those of FEATURES: the families of addresses at which an agent takes packets of sessions that are spread.
FAMILIES = {4: 1 << len(FEATURES), 6: 1 << len(FEATURES) + 1}
# Every agent has these.
COMMON_SLOTS = frozenset({"cpu", MEMORY, DISK})
MAX_NAMED = 16
_NEAR = 0.8

Violations = list[tuple[str, str]]


def offered(backends: Iterable[str]) -> int:
    """Returns the FEATURES of an agent with these backends, as bits."""
    return reduce(or_, (_OFFERED.get(name, 0) for name in backends), 0)


def families(underlay_address: str) -> int:
    """Returns the FAMILIES of an agent, as bits: all while its address is not known. Raises ValueError."""
    if not underlay_address:
        return sum(FAMILIES.values())
    return FAMILIES[ip_address(underlay_address).version]


def needed(isolation: str, image: bool, sftp: bool) -> int:
    """Returns the FEATURES that a kernel needs, as bits. Raises ValueError for an isolation
    that this version does not know.
    """
    if Isolation(isolation) is Isolation.VM:
        return _VM_IMAGES if image else _VM
    return OF_ISOLATION[Isolation(isolation)] | (SFTP if sftp else 0)


def features_by_path(spec: SessionSpec) -> dict[str, int]:
    """Returns the FEATURES that the kernels of an accepted request need, as bits, by the field that asks for them."""
    found: dict[str, int] = {}
    positions = {role: position for position, role in enumerate(spec.roles)}
    for role, _ in spec.layout:
        kernel, own = spec.of_role(role), spec.roles.get(role)
        field = "image" if kernel.image else "isolation"
        path = f"spec.roles[{positions[role]}].kernel" if own is not None and getattr(own, field) else "spec.kernel"
        where = "spec.type" if spec.sftp is not None else f"{path}.{field}"
        found[where] = found.get(where, 0) | needed(spec.isolation_of(role), bool(kernel.image), spec.sftp is not None)
    return found


def runtimes_for(feature: int) -> list[str]:
    """Returns the runtimes that give one of the FEATURES, by its bit."""
    return [name for name, bits in _OFFERED.items() if bits & feature]


def missing_feature(feature: int, group: str, others: Iterable[str], troubles: Iterable[str] = ()) -> str:
    """Returns in words that no agent of a group gives one of the FEATURES; `others` are groups that do, `troubles` are
    why agents of the group do not.
    """
    words = f"no agent of resource group {group} has {FEATURES[feature.bit_length() - 1]}"
    why, names = "; ".join(troubles), list(others)
    if names:
        return f"{words}{f' ({why})' if why else ''}; there is one in {', '.join(names)}"
    return f"{words}: {why or 'see `retinue agents ls -o wide`'}"


def rare_slots(spec: SessionSpec) -> frozenset[str]:
    """Returns the slots of a request that not every agent has."""
    kernels = (spec.kernel, *spec.roles.values())
    return frozenset(slot for kernel in kernels for slot in kernel.slots) - COMMON_SLOTS


def unknown_slots(spec: SessionSpec, unknown: Collection[str], known: Iterable[str]) -> Violations:
    """Returns the `unknown` slots of a request; `known` are those that agents have."""
    names = sorted({*known, *COMMON_SLOTS})
    kernels: Mapping[str, Mapping[str, str]] = {
        "spec.kernel": spec.kernel.slots,
        **{f"spec.roles[{position}].kernel": kernel.slots for position, kernel in enumerate(spec.roles.values())},
    }
    return [
        (f"{path}.slots[{slot!r}]", _no_slot(slot, names))
        for path, slots in kernels.items()
        for slot in slots
        if slot in unknown
    ]


def _no_slot(slot: str, names: list[str]) -> str:
    # `gpu` is no mistyped `cpu`.
    near = get_close_matches(slot, names, 1, _NEAR) or [name for name in names if slot.startswith(name)]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return (
        f"no agent has such a slot{f', did you mean {near[0]}?' if near else ';'} "
        f"there are {', '.join(names[:MAX_NAMED])}{more}"
    )
