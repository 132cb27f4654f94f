"""Specifications of native process kernels."""

from __future__ import annotations

from retinue.agent.attempts import AttemptSpec

PYTHON = "/usr/bin/python3"


def spec(name: str, *command: str, **values: object) -> AttemptSpec:
    settings: dict[str, object] = {
        "slots": {"cpu": 1000, "mem": 256 << 20},
        "hostname": "main1",
        "command": command,
    }
    return AttemptSpec(f"{name}.1", "session", name, 1, **(settings | values))  # type: ignore[arg-type]
