"""Which requests are accepted, field by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.manager.domain.session.admission import admit
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec, TimeWarning
from retinue.manager.domain.session.states import SessionType

GOOD = SessionSpec(
    name="words",
    project="default",
    resource_group="default",
    type=SessionType.BATCH,
    kernel=KernelSpec(command=("true",)),
)


def kernel(**values: Any) -> dict[str, Any]:
    return {"kernel": replace(GOOD.kernel, **values)}


def test_defaults_are_filled_in_and_amounts_made_canonical() -> None:
    spec, violations = admit(replace(GOOD, **kernel(slots={"mem": "2048m"})))
    assert violations == []
    assert spec.kernel.slots == {"cpu": "1", "mem": "2g", "disk": "1g"}
    spec, violations = admit(replace(GOOD, **kernel(slots={"disk": "20480m"})))
    assert (spec.kernel.slots["disk"], violations) == ("20g", [])


@pytest.mark.parametrize("name", ["discovery.type", "Logging__Level:Default", "1st", "-x", "a b", "größe", "x" * 4096])
def test_a_variable_has_any_name_that_a_process_can_have(name: str) -> None:
    assert admit(replace(GOOD, **kernel(environment={name: "1"})))[1] == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(
            ({"name": name}, "spec.name")
            for name in ("", "x" * 64, "-x", "x-", "a/b", "../x", "Ü", "a\n", "a b", "main1", "sub12")
        ),
        *(({"cluster_size": size}, "spec.cluster_size") for size in (-1, 1025, 10**9)),
        *(({"priority": priority}, "spec.priority") for priority in (-1, 101)),
        *(({"grace_seconds": seconds}, "spec.termination_grace") for seconds in (-0.1, 86_400.1)),
        ({"grace_seconds": 300.1, "preemptible": True}, "spec.termination_grace"),
        ({"stop_signal": "STOP"}, "spec.stop_signal"),
        *(({"description": text}, "spec.description") for text in ("x" * 1025, "a\nb", "\x1b[2J")),
        ({"time_warning": TimeWarning("USR1", 1.0)}, "spec.time_warning"),
        *(
            ({"time_limit_seconds": 60.0, "time_warning": TimeWarning("USR1", before)}, "spec.time_warning.before")
            for before in (-1.0, 0.0, 60.0)
        ),
        ({"time_limit_seconds": 60.0, "time_warning": TimeWarning("CHLD", 1.0)}, "spec.time_warning.signal"),
        ({"labels": {"": "x"}}, "spec.labels['']"),
        ({"labels": {"a": "x" * 257}}, "spec.labels['a']"),
        ({"labels": {"a": "x\ny"}}, "spec.labels['a']"),
        ({"labels": {f"k{n}": "" for n in range(65)}}, "spec.labels"),
        ({"roles": {"worker1": KernelSpec()}}, "spec.roles[0].role"),
        ({"bootstrap_script": "#!/bin/sh\r\ntrue\r\n"}, "spec.bootstrap_script"),
        ({"bootstrap_script": "\ufeff#!/bin/sh\ntrue\n"}, "spec.bootstrap_script"),
        ({"bootstrap_script": "true\0"}, "spec.bootstrap_script"),
        (kernel(command=()), "spec.kernel.command"),
        (kernel(command=("a\0",)), "spec.kernel.command"),
        (kernel(command=("",)), "spec.kernel.command[0]"),
        (kernel(image="vllm/vllm-openai", command=("--model", "m")), "spec.kernel.command[0]"),
        (kernel(command=("a",) * 1025), "spec.kernel.command"),
        (kernel(command=("a" * 65537,)), "spec.kernel.command"),
        (kernel(image="team/Upper"), "spec.kernel.image"),
        (kernel(environment={"": "1"}), "spec.kernel.environment['']"),
        (kernel(environment={"A\0": "1"}), "spec.kernel.environment['A\\x00']"),
        (kernel(environment={"BACKENDAI_X": "1"}), "spec.kernel.environment['BACKENDAI_X']"),
        (kernel(environment={"A=B": "1"}), "spec.kernel.environment['A=B']"),
        (kernel(environment={"A": "\0"}), "spec.kernel.environment['A']"),
        (kernel(environment={"A": "x" * 140_000}), "spec.kernel.environment"),
        *(
            (kernel(slots={"cpu": text}), "spec.kernel.slots['cpu']")
            for text in ("0", "-1", "nan", "inf", "1e400", "1.2345", "")
        ),
        *(
            (kernel(slots={"mem": text}), "spec.kernel.slots['mem']")
            for text in ("0", "8", "1023k", "9223372036854775808", "1x")
        ),
        (kernel(slots={"cuda.device": "0.5"}), "spec.kernel.slots['cuda.device']"),
        (kernel(slots={"CPU": "1"}), "spec.kernel.slots['CPU']"),
    ],
)
def test_bad_field_is_named(changes: dict[str, Any], field: str) -> None:
    _, violations = admit(replace(GOOD, **changes))
    assert [path for path, _ in violations] == [field]


def test_all_wrong_fields_are_named_together() -> None:
    _, violations = admit(replace(GOOD, name="-", priority=-5, cluster_size=-3))
    assert {path for path, _ in violations} == {"spec.name", "spec.priority", "spec.cluster_size"}
