"""What the files for people with containers say, as far as it can be read without running them;
scripts/check-images runs them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from retinue.agent import main as agent_main
from retinue.manager import main as manager_main

ROOT = Path(__file__).parents[3]


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def variables(command: Any, prefix: str) -> set[str]:
    """Variables that the options of a command can be given as."""
    found = set()
    for option in command.params:
        names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        found |= {*names, f"{prefix}{option.name.upper()}"}
    return found


def test_compose_brings_up_three_services_that_exist() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "manager", "agent"}
    for name in ("manager", "agent"):
        assert (ROOT / services[name]["build"]["dockerfile"]).is_file()
        assert "privileged" not in services[name]
        assert services[name]["cap_drop"] == ["ALL"]
    assert services["manager"]["read_only"] is True
    assert "cap_add" not in services["manager"]
    declared = compose()["secrets"]
    used = {secret for service in services.values() for secret in service["secrets"]}
    assert used == set(declared)
    volumes = {volume.partition(":")[0] for name in ("postgres", "manager") for volume in services[name]["volumes"]}
    assert volumes == set(compose()["volumes"])


def test_compose_sets_what_the_programs_read() -> None:
    services = compose()["services"]
    serve = manager_main.main.commands["serve"]
    assert serve.context_settings["auto_envvar_prefix"] == "RETINUE_MANAGER"
    assert set(services["manager"]["environment"]) <= variables(serve, "RETINUE_MANAGER_")
    run = agent_main.main.commands["run"]
    assert run.context_settings["auto_envvar_prefix"] == "RETINUE_AGENT"
    assert set(services["agent"]["environment"]) <= variables(run, "RETINUE_AGENT_")


def test_no_secret_is_in_a_variable() -> None:
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            secret = re.search(r"PASSWORD|TOKEN|SECRET", name) is not None
            assert not secret or str(value).startswith("/run/secrets/"), name


def test_dockerfiles_take_their_base() -> None:
    for name in ("manager", "agent"):
        lines = (ROOT / f"Dockerfile.{name}").read_text().splitlines()
        assert any(line.startswith("ARG BASE=") for line in lines)
        first, *stages, last = [line.split()[1] for line in lines if line.startswith("FROM ")]
        assert (first, last) == ("${BASE}", "${BASE}")
        assert set(stages) == {"python"}
    assert "USER retinue" in (ROOT / "Dockerfile.manager").read_text()
    assert "HEALTHCHECK" in (ROOT / "Dockerfile.manager").read_text()
