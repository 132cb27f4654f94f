"""Values out of pages in the Prometheus text format; a page may be anything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.probes.core.exposition import MAX_LINE, MAX_SAMPLES, read_metrics

PAGE = """# HELP queue_depth Requests that wait.
# TYPE queue_depth gauge
queue_depth{model="a"} 3
queue_depth{model="b {} ",other="\\"x\\""} 4.5 1700000000000
# TYPE tokens_total counter
tokens_total 1e3
broken{ 7
broken 1
nan_one NaN
infinite +Inf
queue_depth_of_another 100
"""


def test_samples_are_added_up_by_name() -> None:
    names = {"queue_depth", "tokens_total", "absent", "nan_one", "infinite", "broken"}
    assert read_metrics(PAGE, names) == {"queue_depth": 7.5, "tokens_total": 1000.0}


@pytest.mark.parametrize(
    "page",
    [
        "m one\n",
        "m\n",
        "m{" + "a" * MAX_LINE + "} 1\n",
        "m 1\n" * (MAX_SAMPLES + 1),
        "m 1e999\n",
        "m{\x00}\n",
    ],
)
def test_what_cannot_be_read_is_left_out_and_nothing_else(page: str) -> None:
    assert read_metrics(f"{page}good 2\n", {"m", "good"}) == {"good": 2.0}


@given(
    st.text(alphabet=st.sampled_from('abm{}="\\\\, \\n\\t#10.eNa+-:\x00é'), max_size=200),
    st.sets(st.sampled_from(["a", "m", "ab", ""])),
)
def test_any_page_is_read(page: str, names: set[str]) -> None:
    found = read_metrics(page, names)
    assert found.keys() <= names
    assert all(map(math.isfinite, found.values()))
