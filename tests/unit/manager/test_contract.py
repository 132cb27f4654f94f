"""Rules of the contract that CONTRIBUTING.md states and buf does not know."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

import retinue.agent.v1
import retinue.manager.v1
import retinue.router.v1
import retinue.strategy.v1
import retinue.types.v1
from tests.unit.manager.contract import methods

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

PACKAGES = (retinue.agent.v1, retinue.manager.v1, retinue.router.v1, retinue.strategy.v1, retinue.types.v1)


def files(package: ModuleType) -> Iterator[FileDescriptor]:
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(f"{package.__name__}.{module.name}").DESCRIPTOR


def enums(file: FileDescriptor) -> Iterator[EnumDescriptor]:
    yield from file.enum_types_by_name.values()
    for message in file.message_types_by_name.values():
        yield from message.enum_types


def messages(file: FileDescriptor) -> Iterator[Descriptor]:
    for message in file.message_types_by_name.values():
        yield message
        yield from message.nested_types


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_numbers_follow_the_order(package: ModuleType) -> None:
    found = list(files(package))
    assert found
    for file in found:
        for message in messages(file):
            numbers = [field.number for field in message.fields]
            assert numbers == list(range(1, len(numbers) + 1)), message.full_name
        for enum in enums(file):
            assert [value.number for value in enum.values] == list(range(len(enum.values))), enum.full_name


def test_verbs() -> None:
    names = [method.name for method in methods()]
    assert names
    assert [name for name in names if name.startswith(("Add", "Remove", "Change", "Modify", "Make", "Put"))] == []


def test_each_update_has_a_mask() -> None:
    updates = [method for method in methods() if method.name.startswith("Update")]
    assert updates
    for method in updates:
        mask = method.input_type.fields_by_name.get("update_mask")
        assert mask is not None, method.full_name
        assert mask.message_type is FieldMask.DESCRIPTOR, method.full_name
