"""Credentials for registries, as Docker's `config.json` holds them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from retinue.agent.docker.credentials import CredentialsError, describe_trouble, read_credentials

if TYPE_CHECKING:
    from pathlib import Path

LOGIN = base64.b64encode(b"me:pass:word").decode()


def test_credentials_are_found_by_registry(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    auths = {
        "https://index.docker.io/v1/": {"auth": LOGIN},
        "cr.example.org:5000": {"username": "you", "password": "p"},
        "token.example.org": {"identitytoken": "t", "auth": base64.b64encode(b"<token>:").decode()},
        "bearer.example.org": {"registrytoken": "b"},
        # As `docker login` leaves it for a registry whose credentials a program has.
        "empty.example.org": {},
    }
    path.write_text(json.dumps({"auths": auths}))
    assert read_credentials(path, "docker.io") == {
        "username": "me",
        "password": "pass:word",
        "serveraddress": "docker.io",
    }
    assert read_credentials(path, "cr.example.org:5000")["username"] == "you"
    assert read_credentials(path, "token.example.org") == {"identitytoken": "t", "serveraddress": "token.example.org"}
    assert read_credentials(path, "bearer.example.org") == {"registrytoken": "b", "serveraddress": "bearer.example.org"}
    assert read_credentials(path, "empty.example.org") == {}
    assert read_credentials(path, "cr.example.org") == {}
    assert read_credentials(None, "docker.io") == {}
    assert read_credentials(tmp_path / "none", "docker.io") == {}


@pytest.mark.parametrize(
    "content",
    ["no json s3cret", "[]", '{"auths": {"r": {"auth": "s3cret!"}}}', '{"auths": {"r": {"username": "s3cret"}}}'],
)
def test_unreadable_credentials_are_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(CredentialsError) as error:
        read_credentials(path, "r")
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("content", ["{}", '{"auths": {}}', '{"auths": null}', '{"HttpHeaders": {"X": "y"}}'])
def test_a_file_without_logins_gives_none_and_no_other_file_does(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"r": {"auth": LOGIN}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    own = tmp_path / "registries.json"
    own.write_text(content)
    assert read_credentials(own, "r") == {}
    assert read_credentials(tmp_path / "none", "r") == {}


def test_what_keeps_credentials_from_being_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_trouble(None) == ""
    assert "is not there" in describe_trouble(path)
    path.write_text(json.dumps({"auths": {"r": {"auth": LOGIN}}}))
    assert describe_trouble(path) == ""
    path.write_text(json.dumps({"credHelpers": {"r": "ecr-login"}, "credsStore": "pass"}))
    assert describe_trouble(path).endswith("not installed: docker-credential-ecr-login, docker-credential-pass")
    with pytest.raises(CredentialsError, match="docker-credential-ecr-login is not installed"):
        read_credentials(path, "r")
    (tmp_path / "docker-credential-ecr-login").touch(0o755)
    assert describe_trouble(path).endswith("not installed: docker-credential-pass")
    path.write_text("s3cret")
    assert "cannot be read" in describe_trouble(path)
    assert "s3cret" not in describe_trouble(path)
