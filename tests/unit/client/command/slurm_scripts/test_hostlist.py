"""Lists of hosts: what is compressed expands to the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.client.command.slurm_scripts.hostlist import compress, expand

_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,4}[0-9]{0,4}", fullmatch=True)


@given(st.sets(_NAMES, max_size=20))
def test_a_compressed_list_expands_to_the_same(names: set[str]) -> None:
    assert sorted(expand(compress(names), "hosts")) == sorted(names)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["n3", "n1", "n2", "n7", "gpu01", "gpu02"], "gpu[01-02],n[1-3,7]"),
        (["n1", "n01"], "n01,n1"),
        (["main1", "sub1", "sub2"], "main1,sub[1-2]"),
    ],
)
def test_compressed_lists(names: list[str], text: str) -> None:
    assert compress(names) == text
