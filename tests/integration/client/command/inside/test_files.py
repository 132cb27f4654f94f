"""`retinue cp` and `retinue files`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from tests.integration.client.command.conftest import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def name(client: Client) -> AsyncIterator[str]:
    session = await client.sessions.create(
        type="interactive", name="for-files", slots={"cpu": "0.5", "mem": "64m"}, termination_grace=0
    )
    await session.wait("RUNNING", timeout=NEVER)
    yield session.name
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_copies(retinue: Program, name: str, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "x").write_text("hello\n")
    (tmp_path / "tree" / "link").symlink_to("/etc/passwd")
    ran = await retinue("cp", "-r", str(tmp_path / "tree"), f"{name}:")
    assert (ran.code, ran.out) == (1, "")
    left_out = "left out: tree/link is a link that leads out of what is copied"
    assert ran.err.splitlines() == [left_out, "1 file, 6 bytes"]
    assert (await retinue("exec", name, "--", "cat", "/home/work/tree/sub/x")).out == "hello\n"
    # Into a directory that is there, and to a name that is not.
    assert (await retinue("cp", "-q", str(tmp_path / "tree" / "sub" / "x"), f"{name}:/home/work/tree")).code == 0
    assert (await retinue("cp", "-q", str(tmp_path / "tree" / "sub" / "x"), f"{name}:tree/y")).code == 0
    listed = await retinue("files", "-r", f"{name}:tree", "-o", "name")
    assert listed.code == 0, listed.err
    assert listed.out.split() == ["tree/sub", "tree/sub/x", "tree/x", "tree/y"]
    as_json = json.loads((await retinue("files", "-o", "json", name)).out)
    assert [entry["path"] for entry in as_json["entries"]] == ["tree"]
    assert (await retinue("files", f"{name}:tree")).out.splitlines()[1].startswith("drwx")
    back = tmp_path / "back"
    back.mkdir()
    assert (await retinue("cp", "-r", f"{name}:tree", str(back))).code == 0
    assert (back / "tree" / "sub" / "x").read_text() == "hello\n"
    assert (await retinue("cp", f"{name}:tree/sub/x", str(back / "z"))).code == 0
    assert (back / "z").read_text() == "hello\n"
    # What cannot be named there is missing afterwards: the rest is copied, and the exit code says so.
    (tmp_path / "tree" / "bad\udcff").touch()
    ran = await retinue("cp", "-r", str(tmp_path / "tree"), f"{name}:")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "left out: tree/bad\\xff has a name that is not UTF-8")
    assert ran.err.splitlines()[-1] == "1 file, 6 bytes"


async def test_links_within_a_tree_are_copied(retinue: Program, name: str, tmp_path: Path) -> None:
    tree = tmp_path / "hub"
    (tree / "blobs").mkdir(parents=True)
    (tree / "snapshots" / "1").mkdir(parents=True)
    (tree / "blobs" / "abc").write_text("config\n")
    (tree / "snapshots" / "1" / "config.json").symlink_to("../../blobs/abc")
    (tree / "latest").symlink_to("snapshots/1")
    ran = await retinue("cp", "-r", str(tree), f"{name}:")
    assert (ran.code, ran.err) == (0, "1 file, 7 bytes\n")
    # Again over what is there.
    assert (await retinue("cp", "-rq", str(tree), f"{name}:")).code == 0
    assert (await retinue("exec", name, "--", "cat", "hub/latest/config.json")).out == "config\n"
    assert (await retinue("exec", name, "--", "sh", "-c", "cd hub && ln -s /etc/hosts out && ln -s .. up")).code == 0
    back = tmp_path / "back"
    ran = await retinue("cp", "-r", f"{name}:hub", str(back))
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "left out: hub/out is a link that leads out of what is copied",
        "left out: hub/up is a link that leads out of what is copied",
        "1 file, 7 bytes",
    ]
    assert (back / "latest" / "config.json").read_text() == "config\n"
    assert str((back / "latest").readlink()) == "snapshots/1"
    assert not {"out", "up"} & set(os.listdir(back))


async def test_what_cannot_be_copied(retinue: Program, name: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "x").touch()
    for code, source, target in (
        (2, str(tmp_path / "x"), str(tmp_path / "y")),
        (2, f"{name}:x", f"{name}:y"),
        (2, str(tmp_path / "x"), f"{name}:/etc/x"),
        (1, str(tmp_path / "d"), f"{name}:d"),
        (1, str(tmp_path / "missing"), f"{name}:"),
        (1, str(tmp_path / "x"), f"{name}:a/../../x"),
        (3, f"{name}:missing", str(tmp_path / "z")),
        (3, "no-such-session:x", str(tmp_path / "z")),
        (1, f"{name}:", str(tmp_path / "z")),
    ):
        ran = await retinue("cp", source, target)
        assert (ran.code, ran.out) == (code, ""), (source, target, ran.err)
        assert "Traceback" not in ran.err
    assert sorted(set(os.listdir(tmp_path)) - {"contexts.yaml"}) == ["d", "x"]
