"""Whatever the API accepts of an endpoint's routing and access, a router takes: a refusal would come too late to be
said to the caller.
"""

from __future__ import annotations

import datetime as dt
import json
import ssl
import uuid
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.model import RoutedEndpoint
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.endpoints.routers.messages import endpoint_message
from retinue.manager.server.fields import Violations
from retinue.manager.store.endpoints.endpoints import SETTINGS
from retinue.manager.store.postgres.recordset import recordset
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.router import convert
from retinue.router.core.resources import endpoint_resources
from retinue.types.v1 import cors_pb2, probe_pb2

if TYPE_CHECKING:
    from retinue.manager.domain.endpoints.spec import EndpointSettings

TOKENS = ["x-key", "!#$%&'*+.^_`|~-", "a" * 128, "%REQ(x)%", "X-Upper", "a=b", ":path", "a b", "", "é", "a;b"]
NETWORKS = [
    "192.0.2.0/24",
    "192.0.2.7",
    "0.0.0.0/0",
    "::/0",
    "2001:db8::/32",
    "::ffff:192.0.2.1/128",
    "10.0.0.0/08",
    "10.0.0.0/255.0.0.0",
    "10.0.0.0/0.255.255.255",
    "fe80::%eth0/64",
    "fe80::1%1",
    "10.0.0.1/8",
    "10.0.0.0/",
    " 10.0.0.0/8",
    "",
]
ORIGINS = ["*", "https://page.test", "http://" + "a" * 253, "https://[::1]:8", "https://.-:]", "null", "ftp://a.test"]
PICKERS = [
    "192.0.2.1:1",
    "[2001:db8::1]:65535",
    "picker.test:9002",
    "Picker.Test:9002",
    "pick_er.test:1",
    "a..b:1",
    "-a.test:1",
    "picker.test.:1",
    "[fe80::1%eth0]:1",
    "a" * 64 + ".test:1",
    ":1",
    "a.test:0",
    "a.test:\u0661",
]
HOSTS = ["a.test", "xn--a.test", "a" * 63 + ".test", "*.test", "A.test", "a_b.test", "a.test.", "a", "1.2"]
SECONDS = [0, 1, 59, 300, 3_600, 86_400, 10 * 86_400, 30 * 86_400, 2**40]


@cache
def certificate() -> str:
    key, name = Ed25519PrivateKey.generate(), x509.Name([])
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + dt.timedelta(days=1))
    return builder.sign(key, None).public_bytes(serialization.Encoding.PEM).decode()


def spans() -> st.SearchStrategy[Duration | None]:
    return st.sampled_from(SECONDS).map(lambda seconds: Duration(seconds=seconds)) | st.none()


@st.composite
def specs(draw: st.DrawFn) -> epb.EndpointSpec:
    """Specs that are sound but for one place or two."""

    def some(values: list[str]) -> str:
        # The first ones are sound.
        return draw(st.sampled_from(values) if draw(st.integers(0, 3)) == 0 else st.just(values[0]))

    routing = epb.RoutingPolicy(
        algorithm=draw(st.sampled_from(epb.RoutingAlgorithm.values())),
        request_timeout=draw(spans()),
        idle_timeout=draw(st.none() | spans()),
        hold_timeout=draw(st.none() | spans()),
        hosts=[some(HOSTS)],
        retry_idempotent=draw(st.booleans()),
    )
    if routing.algorithm == epb.ROUTING_ALGORITHM_HASH:
        setattr(routing.hash_key, draw(st.sampled_from(["header", "cookie"])), some(TOKENS))
    if routing.algorithm == epb.ROUTING_ALGORITHM_PICKER:
        routing.picker.address, routing.picker.ca = some(PICKERS), some(["", certificate(), "x", certificate()[:-40]])
    if draw(st.booleans()):
        routing.affinity.CopyFrom(epb.Affinity(cookie=some(TOKENS), lifetime=draw(spans())))
    if draw(st.booleans()):
        cors = cors_pb2.Cors(origins=[some(ORIGINS)], methods=[some(TOKENS)], headers=[some(TOKENS)])
        cors.max_age.CopyFrom(draw(spans()) or Duration())
        routing.cors.CopyFrom(cors)
    access = epb.AccessPolicy(mode=draw(st.sampled_from(epb.AccessMode.values())), source_ranges=[some(NETWORKS)])
    if draw(st.booleans()):
        rate = epb.RequestRate(requests=draw(st.sampled_from([1, 1_000_000, 0, -1, 2**30])), period=draw(spans()))
        access.per_token.CopyFrom(rate)
    return epb.EndpointSpec(name="odd", routing=routing, access=access)


def accepted(spec: epb.EndpointSpec) -> EndpointSettings | None:
    violations = Violations()
    read = Reader(violations).settings(spec, "spec")
    try:
        violations.raise_any()
    except InvalidRequest:
        return None
    return read


def serve(read: EndpointSettings) -> None:
    """Does what routers do with an endpoint, up to the messages of the engine."""
    routed = RoutedEndpoint(uuid.UUID(int=1), "p", "odd", "odd-1", routing=read.routing, access=read.access)
    endpoint = convert.endpoint(endpoint_message(routed, "models.test"))
    for gated in (False, True):
        made = endpoint_resources(endpoint, gated=gated)
        assert made.host is not None
        assert made.clusters


@given(specs())
@settings(max_examples=600, deadline=None)
def test_a_router_takes_what_the_api_accepts(spec: epb.EndpointSpec) -> None:
    if (read := accepted(spec)) is not None:
        serve(read)
        stored = SETTINGS.decode(recordset_value(read))
        assert stored == replace(read, labels={})


def recordset_value(read: EndpointSettings) -> object:
    """Returns settings as they come out of their column."""
    return json.loads(recordset([{"settings": read}]))[0]["settings"]


@pytest.mark.parametrize("network", NETWORKS[7:])
def test_what_is_no_network_in_cidr_notation_is_refused(network: str) -> None:
    assert accepted(epb.EndpointSpec(name="odd", access=epb.AccessPolicy(source_ranges=[network]))) is None


def of_version(number: int) -> str:
    """Returns a certificate that says that it is of this version, counted from zero."""
    der = ssl.PEM_cert_to_DER_cert(certificate())
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01" + bytes([number]), 1))


@pytest.mark.parametrize(
    "ca", ["x", ssl.DER_cert_to_PEM_cert(b"\0\0\0"), of_version(7)], ids=["none", "no DER", "version"]
)
def test_what_is_no_certificate_is_refused(ca: str) -> None:
    picker = epb.Picker(address="192.0.2.1:1", ca=ca)
    routing = epb.RoutingPolicy(algorithm=epb.ROUTING_ALGORITHM_PICKER, picker=picker)
    assert accepted(epb.EndpointSpec(name="odd", routing=routing)) is None


def test_every_bound_of_the_api_is_within_those_of_what_is_stored() -> None:
    day = Duration(seconds=86_400)
    spec = epb.EndpointSpec(
        name="odd",
        scaling=epb.ScalingPolicy(
            min=1_000,
            max=1_000,
            hold_down=Duration(seconds=3_600),
            idle_after=day,
            burst_percent=10_000,
            tolerance_percent=1_000,
            up=epb.ScalingRate(percent=1_000, step=1_000, period=Duration(seconds=3_600)),
            metrics=[epb.ScalingMetric(queue=epb.QueueMetric(), target="1000000000000")],
            fallback_replicas=1_000,
        ),
        routing=epb.RoutingPolicy(
            hold_limit=10_000,
            request_timeout=day,
            affinity=epb.Affinity(cookie="a", lifetime=Duration(seconds=30 * 86_400)),
        ),
        access=epb.AccessPolicy(per_token=epb.RequestRate(requests=1_000_000, period=day)),
        rollout=epb.RolloutSpec(
            canary=epb.CanaryRollout(steps=[epb.CanaryStep(percent=99, hold=Duration(seconds=7 * 86_400))]),
            abort_on=epb.AbortOn(error_percent=100, min_requests=1_000_000),
            progress_timeout=Duration(seconds=7 * 86_400),
        ),
    )
    read = accepted(spec)
    assert read is not None
    assert SETTINGS.decode(recordset_value(read)) == read


@pytest.mark.parametrize("most", [False, True])
def test_every_bound_of_a_revision_is_within_those_of_what_is_stored(most: bool) -> None:
    probe = probe_pb2.Probe(
        http=probe_pb2.HttpProbe(min_status=599 if most else 100, max_status=599 if most else 100),
        period=Duration(seconds=3_600 if most else 1),
        timeout=Duration(seconds=300 if most else 1),
        failures=1_000 if most else 1,
        successes=100 if most else 1,
    )
    probe.http.port = 65_535 if most else 0
    given = epb.RevisionSpec(
        port=65_535 if most else 1,
        startup=probe,
        readiness=probe,
        liveness=probe,
        max_concurrency=10_000 if most else 0,
        queue=100_000 if most else 1,
        start_timeout=Duration(seconds=86_400 if most else 1),
        drain_timeout=Duration(seconds=86_400 if most else 0),
    )
    violations = Violations()
    read = Reader(violations).replica(given, "revision")
    violations.raise_any()
    assert checked(read) == read
