"""YAML of the pages is what its reader takes: fields that there are, with values that they take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from docs.generator import ROOT
from retinue.client.manifest import read_manifest, read_specs, read_templates
from tests.unit.docs.project_files import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"^cat ?> ?(\S+\.ya?ml) <<('?)END\2\n(.*?)^END$", re.MULTILINE | re.DOTALL)
OTHERS = {"scrape_configs": "Prometheus", "apiVersion": "Kubernetes", "services": "Compose"}
"""Keys of files that other programs read."""


class Found(NamedTuple):
    place: str
    text: str
    page: str
    file: str


def found() -> Iterator[Found]:
    for page in listed("*.md"):
        if page.startswith("docs/reference/"):
            continue
        content = (ROOT / page).read_text()
        for block in _BLOCK.finditer(content):
            line = content.count("\n", 0, block.start()) + 1
            yield Found(f"{page}:{line}", block[1], content, "")
        for here in _HERE.finditer(content):
            line = content.count("\n", 0, here.start()) + 1
            # The shell takes these away where the word is not quoted.
            text = here[3] if here[2] else here[3].replace("\\$", "$")
            yield Found(f"{page}:{line}", text, content, here[1])


def reader(found: Found) -> Callable[[str, str], Any] | None:
    """What reads it: as the command of the page that names the file does, else by what is in it; None for what other
    programs read.
    """
    first = next(yaml.safe_load_all(found.text))
    if not first.keys().isdisjoint(OTHERS):
        return None
    command = re.search(rf"retinue ([a-z ]+) -f {re.escape(found.file)}\b", found.page) if found.file else None
    group = command[1].split()[0] if command else ""
    assert command or not found.file, f"{found.place}: no command reads it"
    if group == "template" or (not group and {"name", "spec"} <= first.keys()):
        return read_templates
    if group == "endpoint" or not first.keys().isdisjoint({"revision", "routing"}):
        return lambda text, source: read_manifest(text, source, default="endpoint")
    return read_manifest if group == "apply" else read_specs


@pytest.mark.parametrize("one", list(found()), ids=lambda one: one.place)
def test_a_page_gives_yaml_that_is_taken(one: Found) -> None:
    read = reader(one)
    if read is not None:
        assert read(one.text, one.place)


def test_pages_have_files_of_every_kind() -> None:
    readers = [reader(one) for one in found()]
    assert {read_templates, read_manifest, read_specs, None} <= set(readers)
    assert len(readers) > 8
