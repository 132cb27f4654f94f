"""Every option of a command changes what the manager is asked, unless it is listed as one of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import grpc
import grpc.aio
import pytest
from click.testing import CliRunner

import retinue.client.transport.channel
from retinue.client.command.application import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

# What is typed besides the option that is tried, which takes the place of @; FILE is a script.
COMMANDS = {
    "run": "run -d @ true",
    "submit": "submit --request-id 7f3c1f0a-0000-4000-8000-000000000000 @ FILE",
    "template get": "template get @ t",
    "template ls": "template ls @",
    "template rm": "template rm @ t",
    "ls": "ls @",
    "watch": "watch @",
    "logs": "logs @ s",
    "rm": "rm @",
    "hold": "hold @",
    "release": "release @",
    "restart": "restart @ s",
    "app start": "app start @ s web",
    "app stop": "app stop @ s web",
    "endpoint create": "endpoint create --port 8000 @ e serve",
    "endpoint deploy": "endpoint deploy @ e serve",
    "endpoint rollback": "endpoint rollback @ e",
    "endpoint scale": "endpoint scale @ e",
    "endpoint ls": "endpoint ls @",
    "endpoint token create": "endpoint token create @ e",
    "projects member": "projects member @ p u",
    "users create": "users create @ u",
    "users update": "users update --role user @ u",
    "tokens create": "tokens create @",
    "tokens ls": "tokens ls @",
    "keys add": "keys add @ FILE",
    "keys ls": "keys ls @",
    "quotas ls": "quotas ls @",
    "audit ls": "audit ls @",
    "quotas get": "quotas get @ user u",
    "quotas set": "quotas set @ user u",
    "agents confirm-lost": "agents confirm-lost @",
    "agents drain": "agents drain @ a",
    "agents join-token": "agents join-token @",
    "agents ls": "agents ls @",
    "groups create": "groups create @ g",
    "groups update": "groups update --egress deny @ g",
}
# Their options say what happens on this machine, or they hold a conversation: integration tests try those.
ELSEWHERE = {
    *("apply", "template apply", "template create", "template edit", "template render", "history", "explain", "graph"),
    *("wait", "top", "get", "exec", "attach", "ssh", "cp", "files", "code interrupt", "code run", "code talk", "sftp"),
    *("sftp-mount", "ssh-config", "port-forward", "open", "app logs", "endpoint explain", "endpoint get"),
    *("endpoint logs", "endpoint open", "endpoint pause", "endpoint promote", "endpoint resume", "endpoint rm"),
    *("endpoint token ls", "endpoint top", "endpoint traffic", "projects ls", "users get", "users ls", "users me"),
    *("idle-overrides ls", "idle-overrides set", "agents cordon", "agents get", "agents orphans", "agents uncordon"),
    *(
        "agents undrain",
        "routers get",
        "routers ls",
        "routers revoke",
        "groups get",
        "groups ls",
        "shares",
        "admin verify",
        "console",
    ),
    *("dev", "doctor", "contexts ls", "sbatch", "squeue", "scancel", "sacct", "sinfo"),
    *("scontrol", "srun", "sacctmgr", "sshare"),
}
# They say what is printed, how long this program waits, or where a request is read from.
LOCAL = {
    *("output", "quiet", "raw", "only", "sort_by", "limit", "watch", "wait", "wait_seconds", "timeout"),
    *("fail_fast", "detach", "interactive", "tty", "keep", "file", "wrap", "request_id", "ignore_unknown"),
}
# What is typed for an option of a name, where its type does not say it; what it needs besides stands before the bar.
VALUES = {
    "--slots": "cpu=2",
    "--main-slots": "cpu=2",
    "--sub-slots": "cpu=2",
    "--set": "cluster_size=3",
    "--unset": "--template t | kernel.image",
    "--mount": "/a:/b",
    "--preopen": "8000",
    "--app": "web=serve",
    "--strict-agents": "--agent a |",
    "--retry-on-failure": "--retry 3 |",
    "--retry-backoff": "--retry 3 | 30m",
    "--authorized-keys": "KEYS",
    "--bootstrap": "FILE",
    "--env-file": "VARIABLES",
    "--array": "0-3",
    "--all": "",
    "--validate-only": "",
    "--grace": "5m",
    "--signal": "USR1@60s",
    "--max-tries-before-skip": "--sessions fifo | 3",
    "--half-life": "--sessions fair-share | 30m",
    "--look-back": "--sessions fair-share | 30m",
    "--usage-weight": "--sessions fair-share | cpu=2",
    "--session-option": "--sessions mine | a=1",
    "--session-fallback": "--sessions mine | lifo",
    "--agent-option": "--agents mine | a=1",
    "--agent-fallback": "--agents mine | dispersed",
    "--external-tls": "true",
    "--preemption": "requeue",
    "--preemption-order": "oldest",
    "--weight": "u=2",
    "--idle": "lifetime=1h",
    "--target": "concurrency=3",
    "--file-owner": "7:8",
}
VALUES_OF = {
    "groups update --egress": "allow",
    "run --port": "web:8000",
    "submit --port": "web:8000",
    "submit --depends-on-each": "--array 0-3 | parts",
    "endpoint scale --for": "--floor 3 | 30m",
    "users create --project": "p=member",
    "users update --role": "admin",
    "app stop --grace": "5s",
    "groups create --sessions": "fifo",
    "rm --force": "s |",
    "rm --validate-only": "s |",
    "quotas set --sessions": "3",
}


class _Refusal(grpc.aio.AioRpcError):
    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata())


class _Recorder:
    """A channel that keeps what is asked, answers questions by nothing, and refuses all else."""

    is_connecting = False

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []

    def unary_unary(self, path: str, *, response_deserializer: Callable[[bytes], Message], **_: object) -> Any:
        async def ask(request: Message, **_: object) -> Message:
            self._keep(path, request)
            if path.rpartition("/")[2].startswith(("Get", "List")):
                return response_deserializer(b"")
            raise _Refusal

        return ask

    def unary_stream(self, path: str, **_: object) -> Any:
        def ask(request: Message, **_: object) -> _Stream:
            self._keep(path, request)
            return _Stream()

        return ask

    def stream_stream(self, path: str, **_: object) -> Any:
        return None

    stream_unary = stream_stream

    def _keep(self, path: str, request: Message) -> None:
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            request.ClearField("request_id")
        self.requests.append((path, request.SerializeToString(deterministic=True)))

    async def close(self, grace: float | None = None) -> None:
        del grace


class _Stream:
    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Message:
        raise _Refusal

    def cancel(self) -> None:
        pass


def commands(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def options_of(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


ALL = dict(commands(cli))


def test_every_command_with_options_is_listed() -> None:
    assert {name for name, command in ALL.items() if options_of(command)} == COMMANDS.keys() | ELSEWHERE


def typed(command: str, option: click.Option) -> tuple[list[str], list[str]]:
    """Returns what is typed without an option, and with it."""
    name = max(option.opts, key=len)
    text = VALUES_OF.get(f"{command} {name}", VALUES.get(name, ""))
    before, _, after = text.rpartition("|")
    content = after.split() or ([] if option.is_flag else [value(option)])
    return before.split(), [*before.split(), name, *content]


def value(option: click.Option) -> str:
    kind = option.type
    if isinstance(kind, click.Choice):
        return next(str(choice) for choice in reversed(list(kind.choices)) if choice and choice != option.default)
    if isinstance(kind, click.IntRange):
        return "3"
    if kind is click.INT:
        return "3"
    return {"TIME": "30m", "SIZE": "20g", "NAME=VALUE": "a=1", "NAME[=VALUE]": "a=1"}.get(option.metavar or "", "a")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(name, option, id=f"{name} {max(option.opts, key=len)}")
        for name in COMMANDS
        for option in options_of(ALL[name])
        if option.name not in LOCAL
    ],
)
def test_the_option_changes_the_request(
    name: str, option: click.Option, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, keys, variables = tmp_path / "script", tmp_path / "keys", tmp_path / "variables"
    script.write_text("#!/bin/sh\n")
    keys.write_text("ssh-ed25519 AAAA\n")
    variables.write_text("A=1\n")

    def asked(words: list[str]) -> tuple[list[tuple[str, bytes]], str]:
        recorder = _Recorder()
        monkeypatch.setattr(retinue.client.transport.channel, "open_channel", lambda *_: recorder)
        line = [new for word in COMMANDS[name].split() for new in (words if word == "@" else [word])]
        line = [{"FILE": str(script), "KEYS": str(keys), "VARIABLES": str(variables)}.get(word, word) for word in line]
        result = CliRunner(env={"RETINUE_ENDPOINT": "127.0.0.1:1", "RETINUE_TOKEN": "t"}).invoke(cli, line)
        return recorder.requests, f"{result.output} {result.exception!r}"

    before, after = typed(name, option)
    without, _ = asked(before)
    requests, said = asked(after)
    assert requests, said
    # The last one is what it is all for.
    assert requests[-1:] != without[-1:], said
