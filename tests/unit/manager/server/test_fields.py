"""Checks of fields name what is wrong, all at once."""

from __future__ import annotations

import datetime as dt

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.server.fields import Violations, parse_uuid
from retinue.manager.v1 import account_service_pb2 as pb

SECOND, DAY = dt.timedelta(seconds=1), dt.timedelta(days=1)


def wrong(violations: Violations) -> list[str]:
    try:
        violations.raise_any()
    except InvalidRequest as error:
        return [path for path, _ in error.violations]
    return []


@pytest.mark.parametrize("name", ["a", "a-b", "0", "x" * 63])
def test_good_names(name: str) -> None:
    violations = Violations()
    violations.name("name", name)
    assert wrong(violations) == []


@pytest.mark.attack("odd-names")
@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 64,
        "x" * 300,
        "../x",
        "-rf",
        "a-",
        "a\0",
        "a\n",
        "A",
        "\u202eabc",
        "\U0001f600",
        "a_b",
        "a b",
        "\uff41",
        "٣",
    ],
)
def test_bad_names(name: str) -> None:
    violations = Violations()
    violations.name("name", name)
    assert wrong(violations) == ["name"]


@pytest.mark.attack("odd-durations")
@pytest.mark.parametrize(
    ("value", "good"),
    [
        (Duration(seconds=1), True),
        (Duration(seconds=86_400), True),
        (Duration(seconds=0, nanos=999_999_999), False),
        (Duration(seconds=86_400, nanos=1_000), False),
        (Duration(seconds=-5), False),
        (Duration(seconds=5, nanos=2_000_000_000), False),
        (Duration(seconds=5, nanos=-1), False),
        (Duration(seconds=2**62), False),
    ],
)
def test_durations(value: Duration, good: bool) -> None:
    violations = Violations()
    assert SECOND <= violations.duration("ttl", value, SECOND, DAY) <= DAY
    assert wrong(violations) == ([] if good else ["ttl"])


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("10.0.0.1:1", True),
        ("node-1.example:65535", True),
        ("[2001:db8::1]:7442", True),
        ("2001:db8::1:7442", False),
        ("[10.0.0.1]:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("224.0.0.1:1", False),
        (":7442", False),
        ("host", False),
        ("host:", False),
        ("host:0", False),
        ("host:65536", False),
        ("host:99999999999999999999", False),
        ("host:-1", False),
        ("host:٣", False),
        ("ho st:1", False),
        ("unix:///etc/passwd:1", False),
        ("a@b:1", False),
        ("1.2.3:1", False),
        ("a" * 254 + ":1", False),
        ("host\n:1", False),
    ],
)
def test_addresses(value: str, good: bool) -> None:
    violations = Violations()
    violations.address("address", value)
    assert wrong(violations) == ([] if good else ["address"])


def test_everything_wrong_is_named() -> None:
    violations = Violations()
    violations.name("a", "")
    violations.enum("b", 99, pb.UserRole.DESCRIPTOR)
    violations.enum("c", 0, pb.UserRole.DESCRIPTOR)
    violations.enum("d", 0, pb.UserRole.DESCRIPTOR, unspecified=True)
    violations.integer("e", 11, 1, 10)
    violations.mapping("f", {"x": 1, "y": 2}, 1)
    violations.uuid("g", "nope")
    violations.request_id("nope")
    violations.text("h", "x\n", 10)
    violations.text("i", "x" * 11, 10)
    assert violations.mask("j", FieldMask(paths=["good", "bad", "good"]), {"good"}) == ["good"]
    assert wrong(violations) == ["a", "b", "c", "e", "f", "g", "request_id", "h", "i", "j"]


@pytest.mark.parametrize(
    "text", ["", "x", "{12345678-1234-5678-1234-567812345678}", "12345678123456781234567812345678"]
)
def test_not_a_uuid(text: str) -> None:
    assert parse_uuid(text) is None


def test_a_uuid() -> None:
    assert parse_uuid("12345678-1234-5678-1234-56781234567A") is not None
