"""Ports that a cluster takes, before its programs bind them."""

from __future__ import annotations

import pytest

from retinue.devtools import cluster


def test_ports_are_given_once_before_anything_binds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cluster.free_ports().users, cluster.free_ports().users
    monkeypatch.setattr("random.sample", lambda *_: [first, second])
    with pytest.raises(cluster.ClusterError, match="at least one of any four ports in a row is in use"):
        cluster.free_ports()
    # A first port that is given is the user's choice.
    assert cluster.free_ports(first).users == first
