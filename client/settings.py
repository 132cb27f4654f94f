"""Reads the manager's address and the caller's credentials: from flags, from the environment, from a file of contexts.

The file, `~/.config/retinue/contexts.yaml`, may be read by its owner only:

    current: dev
    contexts:
      dev: {endpoint: "127.0.0.1:7440", token: rtn_…, ca: /path/of/ca.pem}

An endpoint may be several managers, separated by commas: the first that can be reached is used.

A flag goes before `RETINUE_ENDPOINT`, `RETINUE_TOKEN` and `RETINUE_CA`, and these before the context, which is the one
of the flag, of `RETINUE_CONTEXT` or the current one. The token and the CA of a context are only ever used for the
endpoints of that context.
"""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELDS = frozenset({"endpoint", "token", "ca"})
PEM_START = "-----BEGIN"
_CA_ADVICE = "RETINUE_CA, or --ca, must name a copy of the manager's ca.pem"


@dataclass(frozen=True, slots=True)
class Settings:
    """The connection settings of a manager. `ca` is the path of a PEM file, or the PEM itself;
    None trusts the usual CAs.
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None

    def __repr__(self) -> str:
        """Returns a text without the token, for it is written into logs."""
        token = ", with a token" if self.token else ""
        return f"<Settings {self.endpoint}{token}>"

    def environment(self) -> dict[str, str]:
        """Returns the variables by which another program of this kind finds the same manager."""
        found = {"RETINUE_ENDPOINT": self.endpoint, "RETINUE_TOKEN": self.token or "", "RETINUE_CA": self.ca or ""}
        return {**found, "RETINUE_CONTEXT": ""}

    def read_ca(self) -> bytes | None:
        """Returns the CA's certificate in PEM. Raises UsageError when the file cannot be read."""
        return read_ca(self.ca)


def read_ca(ca: str | bytes | os.PathLike[str] | None) -> bytes | None:
    """The PEM of a CA given as PEM or as a path; None stays None. Raises UsageError when the file cannot be read or
    holds no certificates.
    """
    if ca is None:
        return None
    if isinstance(ca, bytes) or (isinstance(ca, str) and ca.startswith(PEM_START)):
        content, source = ca if isinstance(ca, bytes) else ca.encode(), "the CA that was given"
    else:
        source = str(Path(ca))
        try:
            content = Path(ca).expanduser().read_bytes()
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"the CA's certificate cannot be read: {error}: {_CA_ADVICE}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii", errors="ignore"))
    except (ValueError, ssl.SSLError) as error:
        # gRPC would say only that it cannot create a handshaker.
        raise UsageError(f"{source} holds no certificate in PEM: {_CA_ADVICE}") from error
    return content


def contexts_path(environment: Mapping[str, str]) -> Path:
    """Returns the path of the contexts file: `RETINUE_CONTEXTS`, else beneath `XDG_CONFIG_HOME` or `~/.config`."""
    if path := environment.get("RETINUE_CONTEXTS"):
        return Path(path)
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "retinue" / "contexts.yaml"


def ssh_directory(environment: Mapping[str, str]) -> Path:
    """Returns where keys, certificates and configurations for OpenSSH's clients are: beside the contexts file."""
    return contexts_path(environment).parent / "ssh"


def resolve(
    environment: Mapping[str, str],
    *,
    context: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    ca: str | None = None,
) -> Settings:
    """Returns the settings in force; arguments are those of flags. Raises UsageError when no manager is known or the
    file is not as it should be.
    """
    named = context or environment.get("RETINUE_CONTEXT")
    endpoint = endpoint or environment.get("RETINUE_ENDPOINT")
    token = token or environment.get("RETINUE_TOKEN")
    ca = ca or environment.get("RETINUE_CA")
    path = contexts_path(environment)
    if endpoint and not context:
        return _completed(Settings(endpoint, token, ca), path, named)
    current, contexts = read_contexts(path)
    name = named or current
    if name is None:
        raise UsageError(
            "no manager is known: set RETINUE_ENDPOINT, RETINUE_TOKEN and RETINUE_CA, "
            f"add a context to {path}, or run `retinue dev`"
        )
    found = contexts.get(name)
    if found is None:
        raise UsageError(f"there is no context {name!r} in {path}; there is {', '.join(sorted(contexts)) or 'none'}")
    if endpoint and not _are_of(endpoint, found.endpoint):
        return Settings(endpoint, token, ca)
    return Settings(endpoint or found.endpoint, token or found.token, ca or found.ca)


def _completed(settings: Settings, path: Path, named: str | None) -> Settings:
    """Returns settings with the token and the CA of a context that has the same endpoint, where they lack them.
    A file that cannot be read has no contexts: all that is needed may be there without it.
    """
    if settings.token and settings.ca:
        return settings
    try:
        current, contexts = read_contexts(path)
    except UsageError:
        return settings
    found = contexts.get(named or current or "")
    if found is None or not _are_of(settings.endpoint, found.endpoint):
        return settings
    return Settings(settings.endpoint, settings.token or found.token, settings.ca or found.ca)


def _are_of(endpoints: str, others: str) -> bool:
    """Returns whether all endpoints of a list are in another."""
    return {one.strip() for one in endpoints.split(",")} <= {one.strip() for one in others.split(",")}


def with_absolute_ca(settings: Settings) -> Settings:
    """Returns settings that mean the same in any directory. Raises UsageError when the CA cannot be read."""
    if settings.ca is None:
        return settings
    settings.read_ca()
    is_pem = settings.ca.startswith(PEM_START)
    return settings if is_pem else replace(settings, ca=str(Path(settings.ca).expanduser().absolute()))


def read_contexts(path: Path) -> tuple[str | None, dict[str, Settings]]:
    """Returns the current context's name and all contexts; a missing file has none. Raises UsageError."""
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"{path} holds secrets and others may read it: chmod 600 {path}")
            text = file.read()
    except FileNotFoundError:
        return None, {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    import yaml  # noqa: PLC0415  # commands that ssh waits for are given their settings by variables

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if content is None:
        return None, {}
    if not isinstance(content, dict) or not isinstance(content.get("contexts", {}), dict):
        raise UsageError(f"{path} must hold `current` and `contexts`")
    contexts = {str(name): _context(path, str(name), entry) for name, entry in (content.get("contexts") or {}).items()}
    current = content.get("current")
    return (str(current) if current is not None else None), contexts


def _context(path: Path, name: str, entry: Any) -> Settings:
    if not isinstance(entry, dict) or not isinstance(entry.get("endpoint"), str):
        raise UsageError(f"context {name!r} in {path} has no endpoint")
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise UsageError(f"context {name!r} in {path} has unknown keys: {', '.join(sorted(map(str, unknown)))}")
    return Settings(entry["endpoint"], entry.get("token"), entry.get("ca"))


def write_context(path: Path, name: str, settings: Settings | None, *, make_current: bool = False) -> None:
    """Adds, replaces or (None) removes a context; the file is replaced at once and readable by its owner only. Raises
    UsageError, OSError.
    """
    current, contexts = read_contexts(path)
    if settings is None:
        contexts.pop(name, None)
        current = None if current == name else current
    else:
        contexts[name] = settings
        current = name if make_current or current is None else current
    content = {
        "current": current,
        "contexts": {
            key: {
                field: getattr(entry, field)
                for field in ("endpoint", "token", "ca")
                if getattr(entry, field) is not None
            }
            for key, entry in contexts.items()
        },
    }
    import tempfile  # noqa: PLC0415  # as above

    import yaml  # noqa: PLC0415  # as above

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.safe_dump(content, file, sort_keys=False)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
