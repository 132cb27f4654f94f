"""Accounts and ssh inside kernels."""

from __future__ import annotations

import pytest

from retinue.agent.attempts import AttemptSpec
from retinue.agent.kernel.core.accounts import BASH, with_group, with_user
from retinue.agent.kernel.core.ssh import host_names, ssh_files

WORK = "work:x:7:8::/home/work:/bin/sh\n"


@pytest.mark.parametrize(
    ("text", "named", "after"),
    [
        ("", False, WORK),
        ("root:x:0:0::/:/bin/sh", False, f"root:x:0:0::/:/bin/sh\n{WORK}"),
        ("app:x:7:7::/app:/bin/sh\n", False, "app:x:7:7::/app:/bin/sh\n"),
        ("app:x:7:7::/app:/bin/sh\n", True, f"app:x:7:7::/app:/bin/sh\n{WORK}"),
        (WORK, True, WORK),
        ("work:x:9:9::/w:/bin/sh\n", True, f"{WORK}work:x:9:9::/w:/bin/sh\n"),
    ],
)
def test_user(text: str, named: bool, after: str) -> None:
    assert with_user(text, 7, 8, named=named) == after


def test_the_shell_is_what_the_root_has() -> None:
    bash = WORK.replace("/bin/sh", BASH)
    assert with_user("", 7, 8, named=True, shell=BASH) == bash
    assert with_user(WORK, 7, 8, named=True, shell=BASH) == f"{bash}{WORK}"
    assert with_user(bash, 7, 8, named=True, shell=BASH) == bash


def test_group() -> None:
    assert with_group("a:x:1:", 8) == "a:x:1:\nwork:x:8:\n"
    assert with_group("a:x:8:\n", 8) == "a:x:8:\n"


@pytest.mark.attack("keys-of-others")
def test_every_node_makes_the_same_keys_and_no_session_those_of_another() -> None:
    names = host_names("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.1.0.2\tmain1\n10.1.0.3\tsub1\n")
    assert names == ["main1", "sub1"]
    one, same, other = (ssh_files(secret * 32, names) for secret in (b"a", b"a", b"b"))
    # The text of a private key holds a random number besides.
    assert (one.host_key, one.authorized_keys, one.config) == (same.host_key, same.authorized_keys, same.config)
    assert one.authorized_keys != other.authorized_keys
    assert one.host_key != other.host_key
    assert [line.split()[0] for line in one.known_hosts.splitlines()] == ["[main1]:2200", "[sub1]:2200"]
    assert one.config.startswith("Host main1 sub1\n")


@pytest.mark.attack("secrets-in-logs")
def test_secrets_are_not_shown() -> None:
    spec = AttemptSpec("k.1", "s", "k", 1, "main1", session_secret=b"hidden")
    assert "hidden" not in repr(spec)
    assert "PRIVATE" not in repr(ssh_files(b"a" * 32, ["main1"]))
