"""Every spec comes back as it was stored, and no document raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, get_type_hints

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.service_ports import PortRange, ServicePortSpec
from retinue.manager.domain.session.spec import (
    MountSpec,
    RetryPolicy,
    SessionSpec,
    SftpSpec,
    TemplateOrigin,
    TimeWarning,
    WebhookSpec,
)
from retinue.manager.domain.session.spec_codec import VERSION, UnreadableSpec, decode, encode

T = TypeVar("T")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**31), 2**31 - 1)


def many(item: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(item, max_size=2).map(tuple)


NUMERIC = frozenset(
    {
        *("cluster_size", "priority", "counts", "grace_seconds", "time_limit_seconds", "earliest_start_time", "retry"),
        *("mounts", "webhooks", "service_ports", "preopen_ports", "template", "apps", "sftp", "time_warning"),
    }
)
SPECS = st.builds(
    SessionSpec,
    cluster_size=WHOLE,
    priority=WHOLE,
    counts=many(st.tuples(TEXTS, WHOLE)),
    grace_seconds=NUMBERS,
    time_limit_seconds=st.none() | NUMBERS,
    earliest_start_time=st.none() | NUMBERS,
    retry=st.none() | st.builds(RetryPolicy, WHOLE, st.booleans(), NUMBERS, NUMBERS),
    mounts=many(st.builds(MountSpec, TEXTS, TEXTS, st.booleans(), TEXTS, WHOLE, WHOLE)),
    # Secrets are stored elsewhere.
    webhooks=many(st.builds(WebhookSpec, TEXTS, many(TEXTS), st.just(""))),
    service_ports=many(st.builds(ServicePortSpec, TEXTS, TEXTS, many(WHOLE), TEXTS)),
    preopen_ports=many(st.builds(PortRange, WHOLE, WHOLE)),
    template=st.none() | st.builds(TemplateOrigin, TEXTS, TEXTS, TEXTS, WHOLE),
    apps=many(st.from_type(AppSpec)),
    sftp=st.none() | st.builds(SftpSpec, many(TEXTS), WHOLE, TEXTS),
    time_warning=st.none() | st.builds(TimeWarning, TEXTS, NUMBERS, st.booleans()),
    # Texts, truth values, words and maps, which hypothesis makes by their types.
    **{name: st.from_type(hint) for name, hint in get_type_hints(SessionSpec).items() if name not in NUMERIC},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, found: object) -> object:
    """Returns a document of which a part is left out, is there beside others, or is something else."""
    if isinstance(found, Mapping) and found and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(found)))
        match draw(st.integers(0, 3)):
            case 0:
                return {name: value for name, value in found.items() if name != key}
            case 1:
                return {**found, draw(TEXTS): draw(JSON)}
            case _:
                return {**found, key: draw(damaged(found[key]))}
    if isinstance(found, list) and found and draw(st.booleans()):
        return [*found[1:], draw(damaged(found[0]))]
    return draw(JSON)


@given(SPECS)
@settings(deadline=None)
def test_a_spec_comes_back_as_it_was_stored(spec: SessionSpec) -> None:
    assert decode(orjson.loads(orjson.dumps(encode(spec)))) == spec


@given(JSON)
@settings(deadline=None)
def test_no_document_raises(document: object) -> None:
    assert isinstance(decode(document), UnreadableSpec)


@given(SPECS, st.data())
@settings(deadline=None)
def test_no_damage_raises(spec: SessionSpec, data: st.DataObject) -> None:
    document = data.draw(damaged(orjson.loads(orjson.dumps(encode(spec)))))
    assert isinstance(decode(document), SessionSpec | UnreadableSpec)


@given(SPECS, st.integers(VERSION + 1, 2**31), TEXTS, JSON)
@settings(deadline=None)
def test_what_is_known_of_a_newer_document_is_all_but_what_is_new(
    spec: SessionSpec, version: int, name: str, member: object
) -> None:
    document = {f"new {name}": member, **orjson.loads(orjson.dumps(encode(spec))), "version": version}
    assert isinstance(found := decode(document), UnreadableSpec)
    assert found.known == spec
