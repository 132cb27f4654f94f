"""A key that completes a name waits for no manager, and prints no error."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete

from retinue.client.command.application import cli
from retinue.client.command.shell import completed_names

if TYPE_CHECKING:
    from pathlib import Path


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(cli, {}, "retinue", "_RETINUE_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize(
    "words", [("get", ""), ("agents", "drain", ""), ("groups", "get", ""), ("template", "get", "")]
)
def test_a_manager_that_does_not_answer_completes_nothing(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completed_names, "MAX_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RETINUE_ENDPOINT", f"127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("RETINUE_TOKEN", "t")
        assert completed(*words) == []
    assert capfd.readouterr() == ("", "")


def test_contexts_come_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "contexts.yaml"
    monkeypatch.setenv("RETINUE_CONTEXTS", str(path))
    assert completed("contexts", "use", "") == []
    path.write_text("current: home\ncontexts:\n  home: {endpoint: 'h:1'}\n  work: {endpoint: 'w:1'}\n")
    path.chmod(0o600)
    assert completed("contexts", "use", "w") == ["work"]
    assert completed("--context", "") == ["home", "work"]
    path.write_text("[")
    assert completed("contexts", "use", "") == []


def test_a_new_thing_has_no_name_to_complete() -> None:
    for words in (("groups", "create"), ("contexts", "add")):
        command: click.Command = cli
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found
        assert all(parameter._custom_shell_complete is None for parameter in command.params)  # noqa: SLF001  # click has no other
