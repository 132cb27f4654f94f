"""References of images, in the grammar of Docker: `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`. Pure.

Engines read them the same way (github.com/distribution/reference). A host may have upper case, and be an IPv6 address
in brackets; a tag may have upper case; the name may not.
"""

from __future__ import annotations

import ipaddress
import re

DEFAULT_REGISTRY = "docker.io"
EXAMPLE = "registry.example.org:5000/team/app:1.0-RC1"
_ALIASES = {"index.docker.io": DEFAULT_REGISTRY, "registry-1.docker.io": DEFAULT_REGISTRY}
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[(?P<address>[0-9A-Fa-f:.]+)\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# The algorithms that engines know.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_NAME, _MAX_REFERENCE = 255, 1024


def registry_of(reference: str) -> str:
    """Returns the registry of a reference as `host` or `host:port`, in lower case."""
    host, _ = _split(reference.partition("@")[0])
    return _ALIASES.get(host.lower(), host.lower()) if host else DEFAULT_REGISTRY


def wrong_reference(reference: str) -> str:
    """Returns what is wrong with a reference, with the rule and an example; empty for a valid one."""
    if found := _SCHEME.match(reference):
        return f"must not have {found[0]} in front: write it as {EXAMPLE}"
    rest, at, digest = reference.partition("@")
    host, path = _split(rest)
    name, colon, tag = path.partition(":")
    if at and not _DIGEST.fullmatch(digest):
        wrong = "must have a digest after @ such as sha256: and 64 digits 0-9 and a-f"
    elif colon and not _TAG.fullmatch(tag):
        wrong = f"must have a tag of 1-128 letters, digits, _, . and -, with neither . nor - first, as {EXAMPLE}"
    elif host and not _is_host(host):
        wrong = f"must begin with the host of a registry and its port, or with a name in lower case, as {EXAMPLE}"
    elif name != name.lower():
        wrong = f"must have a name in lower case; a tag may have upper case, as {EXAMPLE}"
    elif not _NAME.fullmatch(name) or len(name) > _MAX_NAME or len(reference) > _MAX_REFERENCE:
        wrong = f"is not an image reference: [HOST[:PORT]/]NAME[:TAG][@DIGEST], as {EXAMPLE}"
    else:
        wrong = ""
    return wrong


def _split(name: str) -> tuple[str, str]:
    """Returns the host of a name without its digest, empty where it has none, and the rest of it."""
    first, slash, rest = name.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    return (first, rest) if is_host else ("", name)


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    if found is None or found["address"] is None:
        return found is not None
    try:
        ipaddress.IPv6Address(found["address"])
    except ValueError:
        return False
    return True
