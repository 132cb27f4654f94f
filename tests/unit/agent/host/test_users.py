"""A user for each kernel: which one is next, and what is remembered of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from retinue.agent.attempts import Mount
from retinue.agent.host.id_mapped import can_be_mapped, swapped
from retinue.agent.host.users import LARGEST, UserRange, Users, UsersError, next_uid, parse_range

pytestmark = pytest.mark.root

SMALL = UserRange(70_000, 70_002)


def test_an_id_rests_before_it_is_given_out_again() -> None:
    assert next_uid(SMALL, set(), 0) == 70_000
    assert next_uid(SMALL, set(), 70_000) == 70_001
    assert next_uid(SMALL, {70_002}, 70_001) == 70_000
    assert next_uid(SMALL, {70_000, 70_002}, 70_002) == 70_001
    with pytest.raises(UsersError, match="--uid-range"):
        next_uid(SMALL, {70_000, 70_001, 70_002, 1}, 70_001)


@pytest.mark.parametrize("text", ["", "70000", "2-1", "0-5", "a-b", f"1-{LARGEST + 1}", "-1-5", "1-²", "1-2-3"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_range(text)


def test_a_range() -> None:
    assert parse_range("70000-70002") == SMALL
    assert (70_002 in SMALL, 70_003 in SMALL) == (True, False)


def test_the_work_directory_remembers(tmp_path: Path) -> None:
    def made(name: str) -> Path:
        home = tmp_path / name
        home.mkdir()
        return home

    users = Users(tmp_path, SMALL, 60_000, 60_000)
    first, second = made("a.1"), made("b.1")
    given = [users.assign(first, ()), users.assign(second, ())]
    assert sorted(given) == [70_000, 70_001]
    assert (first.stat().st_uid, first.stat().st_gid) == (given[0], 60_000)
    # A later agent, and the one for the other kind of kernels.
    other = Users(tmp_path, SMALL, 60_000, 60_000)
    assert other.assign(first, ()) == given[0]
    third = made("c.1")
    assert other.assign(third, ()) == 70_002
    with pytest.raises(UsersError):
        users.assign(made("d.1"), ())
    first.rmdir()
    assert users.assign(tmp_path / "d.1", ()) == given[0]


def test_an_id_rests_though_its_kernel_is_gone(tmp_path: Path) -> None:
    users = Users(tmp_path, SMALL, 60_000, 60_000)
    given = []
    for number in range(4):
        home = tmp_path / f"{number}.1"
        home.mkdir()
        given.append(users.assign(home, ()))
        home.rmdir()
    assert given == [70_000, 70_001, 70_002, 70_000]


def test_a_link_beside_work_directories_uses_no_id(tmp_path: Path) -> None:
    """Also one that leads nowhere: its owner is its own."""
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    for directory in (scratch, elsewhere, scratch / "a.1"):
        directory.mkdir()
    os.chown(elsewhere, SMALL.first, 60_000)
    (scratch / "link").symlink_to(elsewhere)
    assert Users(scratch, SMALL, 60_000, 60_000).assign(scratch / "a.1", ()) == SMALL.first


def test_no_two_at_once_get_the_same(tmp_path: Path) -> None:
    homes = [tmp_path / f"{number}.1" for number in range(40)]
    for home in homes:
        home.mkdir()
    users = [Users(tmp_path, UserRange(70_000, 70_039), 60_000, 60_000) for _ in range(2)]
    threads = [threading.Thread(target=users[n % 2].assign, args=(home, ())) for n, home in enumerate(homes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({home.stat().st_uid for home in homes}) == len(homes)


@pytest.mark.parametrize(("one", "other"), [(60_000, 70_000), (70_000, 60_000), (1, 2), (5, LARGEST)])
def test_every_user_has_one_place(one: int, other: int) -> None:
    lines = [tuple(map(int, line.split())) for line in swapped(one, other).splitlines()]
    for side in (0, 1):
        end = 0
        for *starts, count in sorted(lines, key=lambda line, side=side: line[side]):  # type: ignore[misc]
            assert starts[side] == end
            end += count
        assert end == LARGEST + 1
    assert (one, other, 1) in lines
    assert (other, one, 1) in lines


def test_where_owners_cannot_be_translated_the_user_is_the_common_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "scratch" / "a.1").mkdir(parents=True)
    plain, proc = Mount(str(tmp_path), "data", "/data"), Mount("/proc", "sys", "/data")
    assert can_be_mapped((plain,), 60_000, 70_000)
    assert not can_be_mapped((plain, proc), 60_000, 70_000)
    assert can_be_mapped((Mount(str(tmp_path), "missing", "/data"),), 60_000, 70_000)
    home = tmp_path / "scratch" / "a.1"
    assert Users(home.parent, SMALL, 60_000, 60_000).assign(home, (plain, proc)) == 60_000
    assert os.stat(home).st_uid == 60_000
