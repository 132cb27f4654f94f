"""The jail of an SFTP server: a sandbox whose root holds OpenSSH's server, its libraries and its keys,
and the mounts of its session.

There is no shell in it, no other program but rsync where the node has it, no /proc and no writable place but the
mounts. The server runs as the kernel's user, without any capability, and gives access by its own `internal-sftp`;
because the sandbox's root is the jail, nothing has to be changed into, and no directory needs an owner of its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.kernel.core.accounts import ACCOUNT
from retinue.agent.kernel.paths import FILES, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from retinue.agent.attempts import Mount, SftpServer

PORT = 2022
SERVER = "/usr/sbin/sshd"
RSYNC = "/usr/bin/rsync"
HELPERS = ("/usr/lib/openssh/sshd-session", "/usr/lib/openssh/sshd-auth")
"""Programs that servers from OpenSSH 9.8 on start; none before."""
LOADER = f"{PROGRAMS}/jail"
HOST_KEY, CONFIG, AUTHORIZED_KEYS = "host_key", "sshd_config", "authorized_keys"
APPLIED_KEYS = "authorized_keys.applied"
"""The keys that connections may have been made with."""
_CERTIFICATE, _AUTHORITY, _PRINCIPALS = "host_key-cert.pub", "user_authority.pub", "principals"
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_LDD_TIMEOUT = 10.0
# What the server passes on as one word, and does not expand.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+-]+")


@dataclass(frozen=True, slots=True)
class Jail:
    """A jail: files of the node that are shown in it at their own paths, the program that gives up rights in it,
    and its command.
    """

    shown: tuple[str, ...]
    loader: Path
    command: tuple[str, ...]


class NoServerError(Exception):
    """The node has no OpenSSH server; the text says why."""


def has_server() -> bool:
    """Returns whether the node has an OpenSSH server."""
    return os.access(SERVER, os.X_OK)


def jail(loader: Path, uid: int, gid: int, max_file_bytes: int = 0, umask: int = 0o022) -> Jail:
    """Returns the jail of a server that runs as this user, and writes no file beyond a size, 0 for any. Blocks.
    Raises NoServerError.
    """
    helpers = [*filter(os.path.exists, HELPERS)]
    programs = [SERVER, *helpers, *filter(os.path.exists, (RSYNC,))]
    try:
        shown = dict.fromkeys(path for program in programs for path in (program, *_libraries(program)))
    except (OSError, subprocess.SubprocessError) as error:
        raise NoServerError(
            f"OpenSSH's server is missing on the node: install the package openssh-server ({error})"
        ) from error
    # Without -r, an older server reads its key again for each connection; a newer one never does.
    options = ["-D", "-e"] if helpers else ["-D", "-e", "-r"]
    key, config = f"{FILES}/{HOST_KEY}", f"{FILES}/{CONFIG}"
    numbers, limits = (str(uid), str(gid), str(PORT)), (str(max_file_bytes), f"{umask:o}")
    return Jail(tuple(shown), loader, (LOADER, *numbers, key, *limits, SERVER, *options, "-f", config))


def _libraries(program: str) -> list[str]:
    done = subprocess.run(  # noqa: S603
        ["/usr/bin/ldd", program],
        capture_output=True,
        text=True,
        timeout=_LDD_TIMEOUT,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    return [found[1] for line in done.stdout.splitlines() if (found := _LIBRARY.search(line))]


def files(server: SftpServer, mounts: Sequence[Mount]) -> dict[str, tuple[bytes, bool]]:
    """Returns the files of the server by name: content, and whether it is for the server's user only."""
    texts = {
        CONFIG: config(mounts, server.umask),
        _CERTIFICATE: f"{server.host_certificate}\n",
        _AUTHORITY: f"{server.user_authority}\n",
        _PRINCIPALS: f"{server.principal}\n",
        AUTHORIZED_KEYS: key_lines(server.authorized_keys),
        APPLIED_KEYS: key_lines(server.authorized_keys),
    }
    return {HOST_KEY: (server.host_key, True)} | {name: (text.encode(), False) for name, text in texts.items()}


def key_lines(keys: Iterable[str]) -> str:
    """Returns the text of the file of keys that are let in."""
    return "".join(f"restrict {key}\n" for key in keys)


def fingerprint(key: str) -> str:
    """Returns `SHA256:…` of a key's line, as the server prints it. Raises ValueError, IndexError."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def account(uid: int, gid: int, mounts: Sequence[Mount]) -> dict[str, str]:
    """Returns the files under /etc by path. The account's home is the first mount, and its shell runs rsync alone."""
    home = mounts[0].target if mounts and _PLAIN_PATH.fullmatch(mounts[0].target) else "/"
    return {"etc/passwd": f"{ACCOUNT}:x:{uid}:{gid}::{home}:{LOADER}\n", "etc/group": f"{ACCOUNT}:x:{gid}:\n"}


def config(mounts: Sequence[Mount], umask: int = 0o022) -> str:
    """Returns the configuration of the server: SFTP by public keys, beginning in the first mount, and by the account's
    shell nothing else but rsync.
    """
    # With -l INFO, it says which files are opened and closed, and how many bytes went.
    command = f"internal-sftp -l INFO -u 0{umask:03o}"
    if not any(mount.writable for mount in mounts):
        command += " -R"
    if mounts and _PLAIN_PATH.fullmatch(mounts[0].target):
        command += f" -d {mounts[0].target}"
    penalties = "PerSourcePenalties no\n" if any(map(os.path.exists, HELPERS)) else ""
    return f"""Port {PORT}
AddressFamily inet
ListenAddress 127.0.0.1
HostKey {FILES}/{HOST_KEY}
HostCertificate {FILES}/{_CERTIFICATE}
TrustedUserCAKeys {FILES}/{_AUTHORITY}
AuthorizedPrincipalsFile {FILES}/{_PRINCIPALS}
AuthorizedKeysFile {FILES}/{AUTHORIZED_KEYS}
AllowUsers {ACCOUNT}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
DisableForwarding yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
Subsystem sftp {command}
SetEnv RETINUE_UMASK={umask:03o}
MaxSessions 10
MaxStartups 128
LoginGraceTime 120
ClientAliveInterval 30
ClientAliveCountMax 4
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
{penalties}"""
