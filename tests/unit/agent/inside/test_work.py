"""Files of a work directory, against everything that a kernel's user may put there."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from retinue.agent.inside import upload, workdir
from retinue.agent.inside.upload import BusyError, DigestError, IncomingUpload, NoSpaceError, UploadHeader, sweep
from retinue.agent.inside.workdir import MissingError, PathError, RefusedError

pytestmark = pytest.mark.root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "k.1"
    home.mkdir()
    os.chown(home, 60_000, 60_000)
    (tmp_path / "secret").write_text("secret")
    return home


def announced(path: str, content: bytes = b"content", mode: int = 0) -> UploadHeader:
    return UploadHeader(path, len(content), mode, hashlib.sha256(content).digest())


def put(home: Path, path: str, content: bytes = b"content", mode: int = 0) -> None:
    coming = IncomingUpload(home, announced(path, content, mode), resume=False)
    try:
        coming.write(content)
        coming.store()
    finally:
        coming.close()


def left(home: Path) -> list[str]:
    """What waits to be whole."""
    partial = workdir.partial_of(home)
    return sorted(path.name for path in partial.iterdir()) if partial.exists() else []


@pytest.mark.attack("hostile-uploads")
@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "..", "../x", "a/../../x", "./a", "a//b", "a\0b", "a" * 256, "/".join("a" * 101), "b/" * 2050],
)
def test_paths_that_lead_nowhere(home: Path, path: str) -> None:
    with pytest.raises(PathError):
        IncomingUpload(home, announced(path), resume=False)
    with workdir.opened(home) as descriptor, pytest.raises(PathError):
        workdir.open_regular(descriptor, path)
    assert not list(home.iterdir())
    assert not left(home)


def test_a_file_belongs_to_the_user_and_has_no_more_than_permissions(home: Path) -> None:
    put(home, "a/b/run.sh", mode=0o6755)
    put(home, "plain")
    status = (home / "a/b/run.sh").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o755, 60_000, 60_000)
    assert stat.S_IMODE((home / "plain").stat().st_mode) == 0o644
    assert [(home / name).stat().st_uid for name in ("a", "a/b")] == [60_000, 60_000]
    assert not workdir.partial_of(home).exists()


@pytest.mark.attack("hostile-uploads")
def test_links_lead_nowhere(home: Path, tmp_path: Path) -> None:
    (home / "out").symlink_to(tmp_path)
    (home / "up").symlink_to("..")
    (home / "file").symlink_to(tmp_path / "secret")
    (home / "proc").symlink_to("/proc/self/root")
    for path in ("out/x", "up/x", "proc/tmp/x", "out/deep/x"):
        with pytest.raises(RefusedError):
            put(home, path)
    with workdir.opened(home) as descriptor:
        for path in ("out/secret", "up/secret", "file"):
            with pytest.raises(RefusedError):
                workdir.open_regular(descriptor, path)
        found = {entry.path: entry for entry in workdir.walk(descriptor, "", recursive=True)}
        assert set(found) == {"out", "up", "file", "proc"}
        assert found["up"].target == ".."
        assert [entry.path for entry in workdir.walk(descriptor, "file", recursive=True)] == ["file"]
        with pytest.raises(RefusedError):
            list(workdir.walk(descriptor, "out/deep", recursive=True))
        with pytest.raises(RefusedError):
            workdir.make_directory(descriptor, "out", 0o700)
    # Not even one that stays inside: the kernel may turn it while it is followed.
    put(home, "inner/x")
    (home / "within").symlink_to("inner")
    with workdir.opened(home) as descriptor, pytest.raises(RefusedError):
        workdir.open_regular(descriptor, "within/x")
    with pytest.raises(RefusedError):
        put(home, "within/y")
    # A link at the very place is replaced, and what it points to stays as it is.
    put(home, "file")
    assert (tmp_path / "secret").read_text() == "secret"
    assert (home / "file").read_bytes() == b"content"
    assert not left(home)


@pytest.mark.attack("hostile-uploads", "planted-files")
def test_a_directory_that_is_exchanged_meanwhile_leads_nowhere_else(home: Path, tmp_path: Path) -> None:
    """A kernel exchanges it for a link to elsewhere, again and again, while its owner up- and downloads."""
    elsewhere, names = tmp_path / "elsewhere", [os.fsencode(home / name) for name in ("d", "link")]
    for directory, text in ((elsewhere, "secret"), (home / "d", "content")):
        directory.mkdir()
        (directory / "x").write_text(text)
    os.chown(home / "d", 60_000, 60_000)
    (home / "link").symlink_to(elsewhere)
    system, enough = ctypes.CDLL(None, use_errno=True), threading.Event()
    outcomes: Counter[str] = Counter()

    def exchange() -> None:
        # RENAME_EXCHANGE: at no moment is one of the two missing.
        while not enough.is_set() and system.renameat2(-100, names[0], -100, names[1], 2) == 0:
            pass

    def upload_and_download() -> None:
        try:
            put(home, "d/x")
            outcomes["uploaded"] += 1
        except RefusedError:
            outcomes["upload refused"] += 1
        try:
            with workdir.opened(home) as descriptor:
                file = workdir.open_regular(descriptor, "d/x")
            try:
                outcomes[os.read(file, 100).decode()] += 1
            finally:
                os.close(file)
        except RefusedError:
            outcomes["download refused"] += 1

    kernel = threading.Thread(target=exchange)
    kernel.start()
    try:
        while min(outcomes[name] for name in ("uploaded", "upload refused", "content", "download refused")) < 20:
            upload_and_download()
            assert outcomes["secret"] == 0
            assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"x": "secret"}
    finally:
        enough.set()
        kernel.join()


def test_links_are_made_and_never_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / "out").symlink_to(tmp_path / "elsewhere")
    (home / "directory").mkdir()
    with workdir.opened(home) as descriptor:
        for target in ("one", "/etc/passwd"):
            workdir.make_link(descriptor, "a/link", target)
            assert os.readlink(home / "a" / "link") == target
        for path in ("out/link", "directory"):
            with pytest.raises(RefusedError):
                workdir.make_link(descriptor, path, "x")
        for path, target in (("", "x"), ("../x", "x"), ("x", ""), ("x", "a\0b"), ("x", "a" * 4097)):
            with pytest.raises(PathError):
                workdir.make_link(descriptor, path, target)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.listdir(home / "a") == ["link"]
    assert sorted(os.listdir(home)) == ["a", "directory", "out"]


def test_what_is_no_file(home: Path) -> None:
    os.mkfifo(home / "fifo")
    (home / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "socket"))
    with workdir.opened(home) as descriptor:
        for path in ("fifo", "socket", "directory", ""):
            with pytest.raises(RefusedError):
                workdir.open_regular(descriptor, path)
        with pytest.raises(MissingError):
            workdir.open_regular(descriptor, "nothing")
        with pytest.raises(RefusedError):
            workdir.open_regular(descriptor, "fifo/x")
    with pytest.raises(RefusedError):
        put(home, "directory")
    with pytest.raises(RefusedError):
        put(home, "fifo/x")
    put(home, "fifo")
    assert (home / "fifo").read_bytes() == b"content"


def test_names_that_are_not_text_and_trees_that_are_deep(home: Path) -> None:
    os.mkdir(os.fsencode(home) + b"/\xff")
    (Path(os.fsdecode(os.fsencode(home) + b"/\xff")) / "x").touch()
    descriptor = os.open(home, os.O_RDONLY)
    for _ in range(120):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with workdir.opened(home) as top:
        entries = list(workdir.walk(top, "", recursive=True))
    odd = next(entry for entry in entries if entry.kind == 0)
    assert odd.path == "\\xff"
    assert len(entries) <= 1 + workdir.DEEPEST + 1
    workdir.remove_work(home)
    assert not home.exists()


def test_an_upload_continues_where_it_stopped(home: Path) -> None:
    content = os.urandom(3 << 20)
    first = IncomingUpload(home, announced("big", content), resume=True)
    first.write(content[:1_000_000])
    with pytest.raises(BusyError):
        IncomingUpload(home, announced("big", content), resume=True)
    first.close()
    assert not list(home.iterdir()), "the kernel sees nothing of it"
    second = IncomingUpload(home, announced("big", content), resume=True)
    assert second.offset == 1_000_000
    second.write(content[1_000_000:])
    assert second.complete
    second.store()
    second.close()
    assert (home / "big").read_bytes() == content
    assert not left(home)


def test_a_program_can_be_run_from_the_moment_it_is_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, said = os.rename, []

    def run_at_once(*places: Path | str, dst_dir_fd: int) -> None:
        rename(*places, dst_dir_fd=dst_dir_fd)
        said.append(subprocess.run([home / "run"], check=True, capture_output=True).stdout)

    monkeypatch.setattr(os, "rename", run_at_once)
    put(home, "run", b"#!/bin/sh\necho it runs\n", 0o755)
    assert said == [b"it runs\n"]


def test_who_comes_as_another_is_done_touches_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def first_the_other(descriptor: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        put(home, "x")
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", first_the_other)
    with pytest.raises(BusyError, match="just uploaded"):
        IncomingUpload(home, announced("x"), resume=False)
    assert (home / "x").read_bytes() == b"content"


def test_what_is_wrong_is_not_kept(home: Path) -> None:
    (home / "x").write_text("before")
    coming = IncomingUpload(home, announced("x", b"content"), resume=True)
    coming.write(b"CONTENT")
    with pytest.raises(DigestError):
        coming.store()
    coming.close()
    coming = IncomingUpload(home, announced("x", b"content"), resume=True)
    assert coming.offset == 0
    with pytest.raises(DigestError):
        coming.write(b"more than that")
    coming.close()
    assert (home / "x").read_text() == "before"
    assert not left(home)


def test_what_no_caller_continues_is_removed(home: Path) -> None:
    for path, digest in (("kept", True), ("not", False)):
        new = announced(path)
        coming = IncomingUpload(home, new if digest else UploadHeader(path, new.size, 0, b""), resume=digest)
        coming.write(b"con")
        coming.close()
    assert len(left(home)) == 1
    sweep(home, time.time())
    assert len(left(home)) == 1
    sweep(home, time.time() + upload.KEPT + 10)
    assert not workdir.partial_of(home).exists()


@pytest.mark.parametrize("swept", [True, False])
def test_what_former_agents_left_is_removed(home: Path, swept: bool) -> None:
    former = home.with_name("k.1.arriving")
    former.mkdir()
    (former / "part").write_text("con")
    sweep(home, time.time())
    assert (former / "part").exists()
    if swept:
        sweep(home, time.time() + upload.KEPT + 10)
    else:
        workdir.remove_work(home)
    assert not former.exists()


@pytest.mark.attack("hostile-uploads")
def test_there_must_be_space(home: Path) -> None:
    with pytest.raises(NoSpaceError):
        IncomingUpload(home, UploadHeader("sparse", 1 << 60, 0, b"x" * 32), resume=True)
    assert not left(home)


def test_a_kernel_that_has_gone(home: Path) -> None:
    coming = IncomingUpload(home, announced("x"), resume=True)
    coming.write(b"content")
    workdir.remove_work(home)
    with pytest.raises(MissingError):
        coming.store()
    coming.close()
    with pytest.raises(FileNotFoundError):
        IncomingUpload(home, announced("x"), resume=True)
    assert not workdir.partial_of(home).exists()
