"""The local half of copies: what a kernel says of its files leads nowhere but into the target."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from retinue.client.errors import TransferError
from retinue.client.kernel.local_files import IncomingFiles, check_room, found, local_links, local_paths, stays_within
from retinue.types.v1 import file_pb2


def regular(path: str, size: int = 1) -> file_pb2.FileEntry:
    return file_pb2.FileEntry(path=path, type=file_pb2.FILE_TYPE_REGULAR, size=size, mode=0o644, version="1")


@pytest.mark.attack("planted-files")
@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "out/../../x", "out/", "out//x", "else/x", "out/.", "out/a\0b", "out"]
)
def test_names_that_lead_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(TransferError):
        local_paths([regular(path), regular("out/fine")], "out", tmp_path / "target", recursive=True)


def test_local_paths(tmp_path: Path) -> None:
    assert local_paths([regular("a/b")], "a/b", tmp_path / "x", recursive=False) == {"a/b": tmp_path / "x"}
    paths = local_paths([regular("a/b/c")], "a", tmp_path, recursive=True)
    assert paths == {"a/b/c": tmp_path / "b" / "c"}
    link = file_pb2.FileEntry(path="a", type=file_pb2.FILE_TYPE_LINK)
    with pytest.raises(TransferError):
        local_paths([link], "a", tmp_path, recursive=True)
    with pytest.raises(TransferError):
        local_paths([regular("a/b")], "a", tmp_path, recursive=False)


@pytest.mark.parametrize(
    ("target", "depth", "within"),
    [
        ("x", 0, True),
        ("a/b/../c", 0, False),
        ("../x", 1, True),
        ("../x", 0, False),
        ("../../blobs/x", 2, True),
        ("./../x", 1, True),
        (".", 0, True),
        ("..", 1, True),
        ("a/../../x", 1, False),
        ("/etc/passwd", 9, False),
        ("", 0, False),
        ("x\udcff", 0, False),
    ],
)
def test_links_that_stay_within_a_tree(target: str, depth: int, within: bool) -> None:
    assert stays_within(target, depth) is within


def link(path: str, target: str) -> file_pb2.FileEntry:
    return file_pb2.FileEntry(path=path, type=file_pb2.FILE_TYPE_LINK, target=target)


@pytest.mark.attack("planted-files")
def test_links_of_a_kernel_are_made_last_and_lead_out_of_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    entries = [link("out/a/up", ".."), link("out/b", "a/up/../secret"), link("out/c", "../x"), link("out/a/d", "../x")]
    links, skipped = local_links(entries, "out", target)
    assert links == {target / "a" / "up": "..", target / "a" / "d": "../x"}
    assert [path for path, _ in skipped] == ["out/b", "out/c"]
    incoming = IncomingFiles(target, {}, None)
    incoming.make_directories([])
    (target / "a").mkdir()
    (target / "a" / "d").write_text("before")
    incoming.make_links(links)
    incoming.make_links(links)
    assert (target / "a" / "d").readlink() == Path("../x")
    assert sorted(path.name for path in (target / "a").iterdir()) == ["d", "up"]
    incoming.close()
    with pytest.raises(TransferError):
        local_links([link("../x", "y")], "out", target)
    # A link that is there already leads nothing out either.
    (target / "e").symlink_to(tmp_path)
    with pytest.raises(TransferError):
        incoming.make_links({target / "e" / "f": "x"})


def test_links_through_links_lead_out_of_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    entries = [
        link("out/s", "."),
        link("out/s/s/s/up", "../../.."),
        link("out/a/b/t", ".."),
        link("out/a/b/t/up", "../.."),
    ]
    links, skipped = local_links(entries, "out", target)
    assert not skipped
    incoming = IncomingFiles(target, {}, None)
    incoming.make_directories([])
    incoming.make_links(links)
    assert [path for path, _ in incoming.missing] == [str(target / "s/s/s/up"), str(target / "a/b/t/up")]
    made = [path for path in target.rglob("*") if path.is_symlink()]
    assert sorted(made) == [target / "a/b/t", target / "s"]
    incoming.close()


def begin(path: str, offset: int = 0) -> file_pb2.DownloadOutput:
    return file_pb2.DownloadOutput(begin=file_pb2.FileBegin(entry=regular(path, 4), offset=offset))


def data(content: bytes) -> file_pb2.DownloadOutput:
    return file_pb2.DownloadOutput(data=content)


def end(content: bytes) -> file_pb2.DownloadOutput:
    digest = hashlib.sha256(content).digest()
    return file_pb2.DownloadOutput(end=file_pb2.FileEnd(size=len(content), sha256=digest))


def test_a_file_continues_after_a_break(tmp_path: Path) -> None:
    target = tmp_path / "x"
    incoming = IncomingFiles(target, {"x": target}, None)
    for step in (begin("x"), data(b"ab")):
        incoming.take(step)
    assert not target.exists()
    assert list(incoming.wanted(["x"])) == [file_pb2.FileRange(path="x", offset=2, version="1")]
    for step in (begin("x", 2), data(b"cd"), end(b"abcd")):
        incoming.take(step)
    assert target.read_bytes() == b"abcd"
    assert (incoming.files, incoming.bytes, list(incoming.wanted(["x"]))) == (1, 4, [])
    incoming.close()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_changed_begins_again(tmp_path: Path) -> None:
    target = tmp_path / "x"
    incoming = IncomingFiles(target, {"x": target}, None)
    for step in (begin("x"), data(b"ab"), begin("x"), data(b"wxyz"), end(b"wxyz")):
        incoming.take(step)
    assert target.read_bytes() == b"wxyz"
    incoming.close()


def test_what_is_not_whole_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("before")
    for steps in ((begin("x"), data(b"ab"), end(b"abcd")), (begin("y"),), (data(b"a"),), (begin("x", 3),)):
        incoming = IncomingFiles(target, {"x": target}, None)
        for step in steps[:-1]:
            incoming.take(step)
        with pytest.raises(TransferError):
            incoming.take(steps[-1])
        incoming.close()
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_local_link_that_leads_out(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "sub").symlink_to(outside)
    incoming = IncomingFiles(target, local_paths([regular("sub/x")], "", target, recursive=True), None)
    with pytest.raises(TransferError):
        incoming.take(begin("sub/x"))
    incoming.close()
    assert not list(outside.iterdir())


def test_what_is_sent(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_text("xyz")
    (tmp_path / "d" / "link").symlink_to("/etc/passwd")
    (tmp_path / "d" / "bad\udcff").touch()
    uploads, skipped, missing = found(tmp_path / "d", "to", recursive=True)
    assert [(upload.path, upload.directory, upload.size) for upload in uploads] == [
        ("to", True, 0),
        ("to/e", True, 0),
        ("to/e/f", False, 3),
    ]
    assert skipped == [("to/link", "is a link that leads out of what is copied")]
    assert missing == [("to/bad\\xff", "has a name that is not UTF-8")]
    with pytest.raises(TransferError):
        found(tmp_path / "d", "to", recursive=False)


def test_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(TransferError):
        check_room(1 << 60, tmp_path / "not" / "there")
