"""What the contract promises of every file and of every watch, asked of its descriptors."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

import retinue.agent.v1
import retinue.manager.v1
import retinue.router.v1
import retinue.strategy.v1
import retinue.types.v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

PACKAGES = (retinue.agent.v1, retinue.manager.v1, retinue.router.v1, retinue.strategy.v1, retinue.types.v1)
# How a list is paged, ordered and detailed, which means nothing for a stream of changes; and whether sessions and
# endpoints that have ended are listed, whose changes a watch has anyway.
OF_PAGES = {"page_size", "page_token", "order_by", "view", "show_ended", "show_deleted"}


def files() -> list[FileDescriptor]:
    return [
        importlib.import_module(f"{package.__name__}.{module.name}").DESCRIPTOR
        for package in PACKAGES
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.endswith("_pb2")
    ]


def watches() -> Iterator[tuple[MethodDescriptor, MethodDescriptor]]:
    """Each watch, with the list of the same things."""
    for file in files():
        for service in file.services_by_name.values():
            for name, method in service.methods_by_name.items():
                if name.startswith("Watch"):
                    yield method, service.methods_by_name[f"List{name.removeprefix('Watch')}"]


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_each_file_says_where_stubs_of_other_languages_go(file: FileDescriptor) -> None:
    options = file.GetOptions()
    assert options.go_package.startswith("retinue/")
    assert options.java_package
    assert options.java_multiple_files


def test_a_watch_takes_the_filters_of_its_list() -> None:
    found = list(watches())
    assert {watch.name for watch, _ in found} == {"WatchSessions", "WatchEndpoints"}
    for watch, listing in found:
        watched = {field.name: field.type for field in watch.input_type.fields}
        listed = {field.name: field.type for field in listing.input_type.fields if field.name not in OF_PAGES}
        assert listed, listing.name
        assert listed.items() <= watched.items(), watch.name
