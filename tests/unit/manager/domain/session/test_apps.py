"""What apps become when they are asked for."""

from __future__ import annotations

import pytest

from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.service_ports import PublicAddress

ADDRESS = PublicAddress("p1.example.org", "https://p1.example.org/")


@pytest.mark.attack("template-injection")
def test_places_are_filled_once_in_arguments_and_variables() -> None:
    words = ("run", "--at={host}:{port}", "{url}{session}", "{other}{")
    app = AppSpec("web", words, {"ROOT": "{url}", "HOST": "{host}"})
    command, environment = app.at(1, "{port}", ADDRESS, ["{port}"])
    assert command == ["run", "--at=p1.example.org:1", "https://p1.example.org/{port}", "{other}{", "{port}"]
    assert environment == {"ROOT": "https://p1.example.org/", "HOST": "p1.example.org"}


def test_any_argument_is_allowed_by_a_star_only() -> None:
    assert not AppSpec("web", allowed_arguments=("*",)).wrong_additions(["script.py", "--any=1"], {})
    wrong = AppSpec("web", allowed_arguments=("--any",)).wrong_additions(["script.py", "--any=1"], {})
    assert [path for path, _ in wrong] == ["arguments[0]"]
