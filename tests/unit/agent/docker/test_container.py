"""What containers are made of, and what engines answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.agent.attempts import AttemptSpec
from retinue.agent.docker.core.container_spec import Container, Files, body, container_name, limits, runs_as_root
from retinue.agent.docker.core.container_state import parse_state, parse_time


def files() -> Files:
    return Files(
        *(
            Path(f"/node/{name}")
            for name in ("init", "attach", "filter", "barrier", "output", "output.stdout", "hosts", "resolver", "home")
        )
    )


def made(**values: Any) -> dict[str, Any]:
    spec = AttemptSpec("k.1", "session", "k", 1, "main1", **({"image": "image:1"} | values))
    return body(Container("agent", spec, "sha256:1", "7:8", 100, 20_000, files()))


def test_command_becomes_arguments_of_the_first_process() -> None:
    made_body = made(command=("sh", "-c", "exit"))
    assert made_body["Entrypoint"] == [
        "/run/kernel/init",
        "/run/kernel/barrier",
        "/run/kernel/output",
        "/run/kernel/filter",
        ".",
        "0",
    ]
    assert made_body["Cmd"] == ["sh", "-c", "exit"]
    assert made()["Cmd"] == []


@pytest.mark.parametrize(
    ("asked", "of_image", "directory"),
    [("", "", "."), ("/data", "", "/data"), ("", "/app", "-/app"), ("/data", "/app", "/data")],
)
def test_a_directory_that_is_asked_for_has_to_be_there(asked: str, of_image: str, directory: str) -> None:
    assert made(working_directory=asked, image_directory=of_image)["Entrypoint"][4] == directory


@pytest.mark.attack("forged-labels")
def test_nothing_of_the_user_gets_into_labels() -> None:
    labels = made(environment={"SECRET": "s3cret"}, command=("s3cret",))["Labels"]
    assert labels == {
        "retinue.agent": "agent",
        "retinue.attempt": "k.1",
        "retinue.session": "session",
        "retinue.kernel": "k",
        "retinue.image": "image:1",
    }


def test_users_environment_wins() -> None:
    assert made(environment={"A": "1"})["Env"] == ["HOME=/home/work", "A=1"]
    assert made(environment={"HOME": "/x"})["Env"] == ["HOME=/x"]


def test_only_gate_output_and_home_can_be_written() -> None:
    writable = {mount["Target"] for mount in made()["HostConfig"]["Mounts"] if not mount["ReadOnly"]}
    assert writable == {"/run/kernel/barrier", "/run/kernel/output", "/run/kernel/output.stdout", "/home/work"}


@pytest.mark.parametrize("allowed", [1024, 20_000, 65_536, 1 << 20])
def test_open_files_stay_within_what_the_node_allows(allowed: int) -> None:
    spec = AttemptSpec("k.1", "session", "k", 1, "main1", "image:1")
    settings = body(Container("agent", spec, "sha256:1", "7:8", 100, allowed, files()))["HostConfig"]
    assert settings["Ulimits"][0] == {"Name": "nofile", "Soft": min(65_536, allowed), "Hard": min(65_536, allowed)}


def test_limits() -> None:
    assert limits({"cpu": 1500, "mem": 1 << 30}) == {
        "Memory": 1 << 30,
        "MemorySwap": 1 << 30,
        "ShmSize": 1 << 29,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={1 << 29}"},  # noqa: S108
        "CpuPeriod": 100_000,
        "CpuQuota": 150_000,
        "CpuShares": 1536,
    }
    # The engine takes quotas from a thousandth of a second, and would take 0 for no limit at all.
    assert limits({"cpu": 1})["CpuQuota"] == 1000
    assert limits({"cpu": 1})["CpuShares"] == 2
    assert limits({"mem": 1})["ShmSize"] == 1
    assert "Memory" not in limits({"cpu": 1})
    assert "CpuQuota" not in limits({"mem": 1})


@pytest.mark.parametrize(
    ("user", "root"),
    [
        ("", True),
        ("root", True),
        ("0", True),
        ("0:0", True),
        ("root:staff", True),
        (":5", True),
        ("1000", False),
        ("nobody", False),
        ("1000:0", False),
        ("rooter", False),
    ],
)
def test_root(user: str, root: bool) -> None:
    assert runs_as_root(user) is root


def test_names_of_containers_are_those_of_attempts() -> None:
    assert container_name("k.1") == "retinue-k.1"


def test_times() -> None:
    assert parse_time("0001-01-01T00:00:00Z") is None
    assert parse_time("1970-01-01T00:00:01.123456789Z") == pytest.approx(1.123456)
    assert parse_time("1970-01-01T01:00:00.5+01:00") == 0.5
    assert parse_time("1970-01-01T00:00:02") == 2.0


def answer(**values: Any) -> dict[str, Any]:
    state = {
        "Status": "exited",
        "Running": False,
        "Pid": 0,
        "ExitCode": 3,
        "OOMKilled": True,
        "Error": "",
        "FinishedAt": "1970-01-01T00:00:09Z",
    }
    labels = {"retinue.agent": "agent", "retinue.attempt": "k.1"}
    return {"State": state | values, "Config": {"Labels": labels}}


@pytest.mark.parametrize(
    ("said", "code"), [(0, 0), (255, 255), (256, 255), (-1, 255), (3_221_225_786, 255), (None, 255), ("3", 255)]
)
def test_exit_codes_are_those_of_processes(said: object, code: int) -> None:
    assert parse_state(answer(ExitCode=said)).exit_code == code


def test_states() -> None:
    state = parse_state(answer())
    assert (state.attempt_id, state.agent_id, state.exit_code, state.end_time) == ("k.1", "agent", 3, 9.0)
    assert (state.running, state.fresh, state.out_of_memory) == (False, False, True)
    assert parse_state(answer(Status="created", FinishedAt="0001-01-01T00:00:00Z")).fresh
    # One that was restarted by hand still has the time of its former end.
    assert parse_state(answer(Status="running", Running=True)).end_time is None
    foreign = answer() | {"Config": {"Labels": None}}
    assert parse_state(foreign).attempt_id == ""
