"""Decides which sessions of a file are made: those that are not there, or have failed. Pure.

A session that `apply` makes carries a label with the digest of its request, so that the same request is known again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

APPLIED = "retinue/applied"
"""The label."""
_DIGITS = 16
_MAX_LABELS = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One session of a file: its request with the label, and the session that it is left as; None: it is made."""

    spec: session_pb2.SessionSpec
    kept: session_pb2.Session | None = None


def labelled(spec: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
    """Returns a request with the label of its digest; as it is without a name, which no other call can know again."""
    made = session_pb2.SessionSpec()
    made.CopyFrom(spec)
    # As `retinue get -o yaml` shows it, with the label of what it was then.
    made.labels.pop(APPLIED, None)
    if made.name and len(made.labels) < _MAX_LABELS:
        made.labels[APPLIED] = hashlib.sha256(made.SerializeToString(deterministic=True)).hexdigest()[:_DIGITS]
    return made


def plan(
    specs: Sequence[session_pb2.SessionSpec], found: Mapping[str, session_pb2.Session], *, again: bool
) -> list[Step]:
    """Returns what is done with each request, labelled; `found` are the newest sessions by name.

    The same request is left alone while its session waits or runs and once it has succeeded; with `again` only while it
    has not ended. What depends on one that is made again, and has ended, is made again too.
    """
    kept = {
        spec.name: session
        for spec in specs
        if (session := found.get(spec.name)) is not None
        and _is_same(spec, session)
        and (not enum_names.is_ended(session) or (_has_succeeded(session) and not again))
    }
    names = {spec.name for spec in specs if spec.name}
    changed = True
    while changed:
        changed = False
        for spec in specs:
            session = kept.get(spec.name)
            if session is None or not enum_names.is_ended(session):
                continue
            if any(
                name in names and name not in kept
                for name in (*spec.depends_on, *spec.runs_after, *spec.runs_after_failure)
            ):
                del kept[spec.name]
                changed = True
    return [Step(spec, kept.get(spec.name)) for spec in specs]


def _is_same(spec: session_pb2.SessionSpec, session: session_pb2.Session) -> bool:
    digest = spec.labels.get(APPLIED)
    return bool(digest) and session.spec.name == spec.name and session.spec.labels.get(APPLIED) == digest


def _has_succeeded(session: session_pb2.Session) -> bool:
    return session.result == session_pb2.SESSION_RESULT_SUCCESS
