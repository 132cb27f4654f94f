"""Settings of an agent: what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.agent.settings import Settings, check


def settings(**values: object) -> Settings:
    """Returns settings that are fine but for these values."""
    sound = {
        "agent_id": "n1",
        "state_dir": Path("/s"),
        "scratch_dir": Path("/w"),
        "managers": ("m:1",),
        "listen": "h:2",
    }
    return Settings(**(sound | values))  # type: ignore[arg-type]  # of any field


def test_what_is_enforced_or_only_counted_is_offered_and_shares_of_gpus_are_not() -> None:
    check(settings(slots={"cpu": 1000, "cuda.device": 2000, "licences": 4000, "cudart": 1}))
    with pytest.raises(
        ValueError, match=r"slot cuda\.shares cannot be offered: kernels get whole GPUs \(cuda\.device\)"
    ):
        check(settings(slots={"cpu": 1000, "cuda.shares": 4000}))


@pytest.mark.parametrize("network", ["127.0.0.0/8", "169.254.169.254/32", "198.18.7.0/24", "224.0.0.0/4"])
def test_a_network_that_no_kernel_reaches_cannot_be_allowed(network: str) -> None:
    check(settings(egress_allow=("10.0.0.0/8", "0.0.0.0/0")))
    with pytest.raises(ValueError, match="has no effect"):
        check(settings(egress_allow=(network,)))


def test_more_networks_than_managers_take_are_refused() -> None:
    check(settings(egress_allow=("10.0.0.0/8",) * 56))
    with pytest.raises(ValueError, match="57 networks; at most 56"):
        check(settings(egress_allow=("10.0.0.0/8",) * 57))


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:2375", "ssh://root@node", "/var/run/docker.sock", "unix://run/s"])
def test_an_engine_elsewhere_is_refused(host: str) -> None:
    check(settings(docker_host="unix:///run/docker.sock"))
    with pytest.raises(ValueError, match="is not a Docker engine of this node"):
        check(settings(docker_host=host))
