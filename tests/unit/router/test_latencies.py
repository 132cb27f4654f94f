"""Latencies of endpoints, out of what the engine says of clusters: sums that never shrink."""

from __future__ import annotations

from retinue.router.core.table import Endpoint
from retinue.router.metrics import LATENCY_BOUNDS, Families, LatencyHistory
from retinue.router.statistics import LatencyTotals, parse_answers, parse_latencies

_ID, _OTHER = "01234567-89ab-cdef-0123-456789abcdef", "f1234567-89ab-cdef-0123-456789abcdef"
_ENDPOINTS = {_ID: Endpoint(id=_ID, name="toy", project="p", hosts=("toy.test",), revisions=())}
_SAID = f"""# TYPE envoy_cluster_upstream_rq_time histogram
envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="{_ID}/2",le="5"}} 1
envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="{_ID}/2",le="2.5e+2"}} 3
envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="{_ID}/2",le="+Inf"}} 4
envoy_cluster_upstream_rq_time_sum{{envoy_cluster_name="{_ID}/2"}} 612.5
envoy_cluster_upstream_rq_time_count{{envoy_cluster_name="{_ID}/2"}} 4
envoy_cluster_upstream_rq_time_count{{envoy_cluster_name="gate"}} 9
nonsense
"""


def totals(count: int, milliseconds: float = 0.0) -> LatencyTotals:
    return LatencyTotals({0.005: count}, count, milliseconds)


def test_what_the_engine_says_is_read() -> None:
    assert parse_latencies(_SAID) == {(_ID, 2): LatencyTotals({0.005: 1, 0.25: 3}, 4, 612.5)}
    assert parse_latencies("") == {}
    assert parse_answers("http.clients.downstream_rq_2xx: 7\nhttp.admin.downstream_rq_2xx: 1\n") == {"2xx": 7}


def test_revisions_of_an_endpoint_are_added_up_and_others_left_out() -> None:
    found = LatencyHistory().take({(_ID, 1): totals(2, 3.0), (_ID, 2): totals(1), (_OTHER, 1): totals(9)}, _ENDPOINTS)
    assert found == {_ID: totals(3, 3.0)}


def test_a_sum_never_shrinks() -> None:
    history = LatencyHistory()
    history.take({(_ID, 1): totals(5, 50.0), (_ID, 2): totals(1)}, _ENDPOINTS)
    # A revision is gone.
    assert history.take({(_ID, 2): totals(2)}, _ENDPOINTS) == {_ID: totals(7, 50.0)}
    # The engine was started again.
    assert history.take({(_ID, 2): totals(1)}, _ENDPOINTS) == {_ID: totals(8, 50.0)}
    assert history.take({}, _ENDPOINTS) == {_ID: totals(8, 50.0)}
    # The endpoint is deleted, and nothing is kept of it.
    assert history.take({}, {}) == {}
    assert history.take({}, _ENDPOINTS) == {}


def test_buckets_grow_up_to_all() -> None:
    families = Families()
    families.add_latencies(_ENDPOINTS, {_ID: LatencyTotals(dict.fromkeys(LATENCY_BOUNDS, 3), 4, 612.5)})
    samples = {sample.labels.get("le", sample.name): sample.value for sample in families.seconds.samples}
    assert samples["+Inf"] == 4
    assert samples["retinue_endpoint_request_seconds_sum"] == 0.6125
    assert len(samples) == len(LATENCY_BOUNDS) + 3
