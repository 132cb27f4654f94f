"""Stands in for systemd on machines of tests, which have no init: starts units as their files say.

It applies the settings that our units have and refuses others, so that none is taken for tested without being applied.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import subprocess
import sys
from pathlib import Path

UNITS = Path("/etc/systemd/system")
SERVICES = Path("/var/lib/services")
# What makes a difference to a whole system only, or to what a test does not do here.
LEFT_OUT = {
    *("TimeoutStartSec", "KillMode", "Delegate", "Restart", "RestartSec", "LimitNOFILE", "TasksMax"),
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock", "ProtectControlGroups"),
    *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "LockPersonality"),
    *("RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
    *("PrivateMounts", "PrivateUsers", "ProtectProc", "RemoveIPC", "SystemCallArchitectures", "SystemCallErrorNumber"),
    "SystemCallFilter",
}


def start(name: str) -> None:
    """Starts a unit and waits until it says that it is ready."""
    service = {key: value for key, value in _options(UNITS / f"{name}.service").items() if key not in LEFT_OUT}
    command = shlex.split(service.pop("ExecStart"))
    user, group = service.pop("User", "root"), service.pop("Group", "root")
    mode, umask = (
        int(service.pop(key, usual), 8) for key, usual in (("StateDirectoryMode", "0755"), ("UMask", "0022"))
    )
    if directory := service.pop("StateDirectory", ""):
        state = Path("/var/lib", directory)
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(mode)
        os.chown(state, pwd.getpwnam(user).pw_uid, -1)
    if "CapabilityBoundingSet" in service:
        bounds, ambient = _set(service.pop("CapabilityBoundingSet")), _set(service.pop("AmbientCapabilities", ""))
        confined = ["--bounding-set", bounds, "--inh-caps", ambient, "--ambient-caps", ambient]
        if service.pop("NoNewPrivileges", "no") == "yes":
            confined.append("--no-new-privs")
        command = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", *confined, "--", *command]
        # It needs root for that.
        user = group = "root"
    Path("/var/cache", service.pop("CacheDirectory", "")).mkdir(parents=True, exist_ok=True)
    if service.pop("Type") != "notify" or service:
        sys.exit(f"{name}: this systemctl does not apply {service}")
    SERVICES.mkdir(exist_ok=True)
    log, notified = SERVICES / f"{name}.log", SERVICES / f"{name}.notify"
    notified.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, log.open("ab") as output:
        ready.bind(str(notified))
        notified.chmod(0o777)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # A service has none of the variables of its caller.
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": str(notified)},
            user=user,
            group=group,
            extra_groups=[],
            umask=umask,
            cwd="/",
            start_new_session=True,
        )
        (SERVICES / f"{name}.pid").write_text(str(process.pid))
        if not _wait(ready, process):
            sys.exit(f"{name} did not start: {log.read_text()}")


def _options(unit: Path) -> dict[str, str]:
    """Returns the options of a service; one that its unit says several times goes on each time."""
    options: dict[str, str] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            key, value = line.split("=", 1)
            options[key] = f"{options.get(key, '')} {value}".strip()
    return options


def _set(capabilities: str) -> str:
    """Returns a set of capabilities as setpriv takes it; `~` means all but those."""
    names = [name.removeprefix("CAP_").lower() for name in capabilities.replace("~", "").split()]
    first, sign = ("+all", "-") if capabilities.startswith("~") else ("-all", "+")
    return ",".join([first, *(f"{sign}{name}" for name in names)])


def _wait(ready: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    """Returns whether the service says that it is ready before it ends."""
    ready.settimeout(0.1)
    # Who types it does not wait for ever.
    while process.poll() is None:
        try:
            return ready.recv(4096) == b"READY=1"
        except TimeoutError:
            continue
    return False


def main(words: list[str]) -> None:
    """Does what the words of a command line say."""
    command, *units = [word for word in words if word != "--now"]
    if command == "daemon-reload":
        return
    if command not in {"enable", "start"}:
        sys.exit(f"this systemctl does not know {command}")
    for name in units:
        start(name)


if __name__ == "__main__":
    main(sys.argv[1:])
