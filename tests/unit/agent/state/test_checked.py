"""Damage anywhere in a document with a checksum is noticed, and nothing else is raised than ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.state import checked

VALUES = {"name": "ä", "numbers": [1, 2.5, None], "inner": {"b": True, "a": ""}}


def test_what_was_dumped_is_loaded() -> None:
    assert checked.load(checked.dump(VALUES)) == VALUES
    # In another order and without spaces it is the same document.
    content = json.dumps(dict(reversed(json.loads(checked.dump(VALUES)).items())), separators=(",", ":"))
    assert checked.load(content.encode()) == VALUES


@given(st.data())
def test_a_changed_byte_is_noticed_or_changes_nothing(data: st.DataObject) -> None:
    content = bytearray(checked.dump(VALUES))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = checked.load(bytes(content))
    except ValueError:
        return
    # White space, or the byte as it was.
    assert found == VALUES


@pytest.mark.parametrize("name", ["name", "numbers", "inner"])
def test_a_changed_value_is_noticed(name: str) -> None:
    values = json.loads(checked.dump(VALUES))
    values[name] = "another"
    with pytest.raises(ValueError, match="checksum"):
        checked.load(json.dumps(values).encode())
    del values[name]
    with pytest.raises(ValueError, match="checksum"):
        checked.load(json.dumps(values).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"{}",
        b'{"checksum": null}',
        b'{"checksum": ["x"]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        json.dumps(VALUES).encode(),
        checked.dump(VALUES)[:-1],
        checked.dump(VALUES) + b"x",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked.load(content)
