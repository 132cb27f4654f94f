"""What a cluster's answers mean for kernels that are to be pods."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.devtools.doctor import ERROR, OK, WARNING
from retinue.devtools.pod_doctor import ABSENT, NEEDED, NOT_READY, READY, UNKNOWN, PodFacts, evaluate, examine

if TYPE_CHECKING:
    from pathlib import Path

GOOD = PodFacts("retinue-kernels", "n1", "n1.test", node=READY)


@pytest.mark.parametrize("facts", [GOOD, replace(GOOD, node=UNKNOWN)])
def test_a_good_node_lacks_nothing(facts: PodFacts) -> None:
    assert [finding.state for finding in evaluate(facts)] == [OK] * 4


@pytest.mark.parametrize(
    ("facts", "name", "state", "words"),
    [
        (replace(GOOD, trouble="refused"), "kubernetes", ERROR, "--kube-config"),
        (replace(GOOD, denied=NEEDED[:2]), "kube-rights", ERROR, "create, get pods in retinue-kernels"),
        (replace(GOOD, excessive=["secrets"]), "kube-rights", WARNING, "secrets"),
        (replace(GOOD, node=ABSENT), "kube-node", ERROR, "no node n1"),
        (replace(GOOD, node=NOT_READY), "kube-node", WARNING, "kubelet"),
        (replace(GOOD, node=UNKNOWN, machine="other"), "kube-node", WARNING, "other, not n1"),
        (replace(GOOD, refusal="exceeded quota"), "kube-admission", ERROR, "exceeded quota"),
    ],
)
def test_each_lack_is_named_with_its_remedy(facts: PodFacts, name: str, state: str, words: str) -> None:
    (finding,) = [finding for finding in evaluate(facts) if finding.state != OK]
    assert (finding.name, finding.state) == (name, state)
    assert words in finding.message + finding.remedy
    assert finding.remedy


@pytest.mark.parametrize("content", [None, "", "{}", '{"clusters": 7}', "\x00"])
def test_a_configuration_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    assert examine(tmp_path / "config", "n1", "retinue-kernels").trouble


def test_an_api_that_does_not_answer_is_named(tmp_path: Path) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    assert "refused" in examine(tmp_path / "config", "n1", "retinue-kernels").trouble
