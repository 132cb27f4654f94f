"""The contract of the manager's services."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import MethodOptions

import retinue.manager.v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import MethodDescriptor


def methods() -> Iterator[MethodDescriptor]:
    """Returns the methods of the manager's services that change something."""
    for module in pkgutil.iter_modules(retinue.manager.v1.__path__):
        if module.name.endswith("_service_pb2"):
            file = importlib.import_module(f"retinue.manager.v1.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                for method in service.methods:
                    if method.GetOptions().idempotency_level != MethodOptions.NO_SIDE_EFFECTS:
                        yield method
