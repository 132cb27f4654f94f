"""Credentials for image registries, from a file of the node in the format of Docker's `config.json`.

The file may hold them (`auths`) or name the programs that do (`credHelpers`, `credsStore`), as for Docker's own
command line. They are asked for at each fetch, stay in the agent's memory for as long as that takes,
and go to the engine of the same node only.
"""

from __future__ import annotations

import base64
import json
import shutil
from typing import TYPE_CHECKING, Any

from docker import auth
from docker.credentials.constants import PROGRAM_PREFIX
from docker.errors import DockerException

from retinue.agent.docker.registries import DEFAULT_REGISTRY, host_of

if TYPE_CHECKING:
    from pathlib import Path

# The fields of a login that engines read.
_FIELDS = ("username", "password", "identitytoken", "registrytoken")
_UNREADABLE = (OSError, ValueError, AttributeError, TypeError, LookupError)


class CredentialsError(Exception):
    """The credentials for a registry cannot be read; the text holds none of them."""


def read_credentials(path: Path | None, registry: str) -> dict[str, str]:
    """Returns what the engine needs to log in to a registry; empty when there is nothing for it.
    Raises CredentialsError. Blocks, for as long as a helper takes.
    """
    if path is None:
        return {}
    try:
        content = _read(path)
        config = _config(content)
        if (name := config.get_credential_store(registry)) and (program := _missing_program(name)):
            raise CredentialsError(f"credentials for {registry} cannot be read: {program} is not installed")
        found = config.resolve_authconfig(registry) or {}
        login = {key.lower(): str(value) for key, value in found.items() if key.lower() in _FIELDS and value}
        login |= _registry_token(content, registry)
    except DockerException as error:
        raise CredentialsError(f"credentials for {registry} cannot be read: {error}") from None
    except _UNREADABLE as error:
        # The error's own words may quote the file.
        raise CredentialsError(f"credentials in {path} cannot be read ({type(error).__name__})") from None
    if "password" in login:
        login["password"] = login["password"].rstrip("\0")
    return login and login | {"serveraddress": registry}


def describe_trouble(path: Path | None) -> str:
    """Returns in words what keeps credentials from being read, for any registry; empty when nothing does. Blocks."""
    if path is None:
        return ""
    try:
        content = _read(path)
        programs = {content.get("credsStore") or "", *(content.get("credHelpers") or {}).values()} - {""}
        _config(content)
    except (DockerException, *_UNREADABLE) as error:
        return f"{path} cannot be read ({type(error).__name__})"
    if not content:
        return f"{path} is not there, or holds nothing"
    missing = sorted(filter(None, map(_missing_program, programs)))
    return f"{path} names programs that are not installed: {', '.join(missing)}" if missing else ""


def _missing_program(name: str) -> str:
    program = f"{PROGRAM_PREFIX}{name}"
    return "" if shutil.which(program) else program


def encode_login(login: dict[str, str]) -> str:
    """Returns the value of the header `X-Registry-Auth` of the Docker Engine API."""
    return base64.urlsafe_b64encode(json.dumps(login).encode()).decode()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(content, dict):
        raise TypeError(content)
    return content


def _config(content: dict[str, Any]) -> auth.AuthConfig:
    """Returns the file as the SDK takes it, which knows one way to write a login, and one to name Docker's registry."""
    entries = {name: _with_auth(entry) for name, entry in (content.get("auths") or {}).items()}
    helpers = {
        auth.INDEX_URL if host_of(name) == DEFAULT_REGISTRY else name: helper
        for name, helper in (content.get("credHelpers") or {}).items()
    }
    # The SDK would look for another file in place of an empty one.
    own = {"auths": entries, "credHelpers": helpers, "credsStore": content.get("credsStore") or ""}
    return auth.load_config(config_dict=own) if any(own.values()) else auth.AuthConfig({})


def _with_auth(entry: dict[str, str]) -> dict[str, str]:
    if "auth" in entry:
        base64.b64decode(entry["auth"], validate=True)
    elif "username" in entry:
        login = f"{entry['username']}:{entry['password']}"
        return entry | {"auth": base64.b64encode(login.encode()).decode()}
    return entry


def _registry_token(content: dict[str, Any], registry: str) -> dict[str, str]:
    """Returns a bearer token of the file, which the SDK leaves out."""
    entries = {host_of(name): entry for name, entry in (content.get("auths") or {}).items()}
    token = entries.get(registry, {}).get("registrytoken")
    return {"registrytoken": str(token)} if token else {}
