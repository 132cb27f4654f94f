"""A user for each kernel: which one is next, and what is remembered of it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.agent.attempts import Mount, Owner
from retinue.agent.host.id_mapped import (
    LIMIT,
    MAX_GROUPS,
    ForeignOwnerError,
    OwnerMaps,
    required_owner,
    swapped,
    translated,
)
from retinue.agent.host.users import LARGEST, UserRange, Users, UsersError, next_uid, parse_range

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root

OWNER = Owner(60_000, 60_000)
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

    users = Users(tmp_path, SMALL, OWNER)
    first, second = made("a.1"), made("b.1")
    given_out = [users.assign(first, ()).uid, users.assign(second, ()).uid]
    assert sorted(given_out) == [70_000, 70_001]
    assert (first.stat().st_uid, first.stat().st_gid) == (given_out[0], 60_000)
    # A later agent, and the one for the other kind of kernels.
    other = Users(tmp_path, SMALL, OWNER)
    assert other.assign(first, ()) == Owner(given_out[0], 60_000)
    third = made("c.1")
    assert other.assign(third, ()).uid == 70_002
    with pytest.raises(UsersError):
        users.assign(made("d.1"), ())
    first.rmdir()
    assert users.assign(tmp_path / "d.1", ()).uid == given_out[0]


def test_an_id_rests_though_its_kernel_is_gone(tmp_path: Path) -> None:
    users = Users(tmp_path, SMALL, OWNER)
    given_out = []
    for number in range(4):
        home = tmp_path / f"{number}.1"
        home.mkdir()
        given_out.append(users.assign(home, ()).uid)
        home.rmdir()
    assert given_out == [70_000, 70_001, 70_002, 70_000]


def test_a_link_beside_work_directories_uses_no_id(tmp_path: Path) -> None:
    """Also one that leads nowhere: its owner is its own."""
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    for directory in (scratch, elsewhere, scratch / "a.1"):
        directory.mkdir()
    os.chown(elsewhere, SMALL.first, 60_000)
    (scratch / "link").symlink_to(elsewhere)
    assert Users(scratch, SMALL, OWNER).assign(scratch / "a.1", ()).uid == SMALL.first


def test_no_two_at_once_get_the_same(tmp_path: Path) -> None:
    homes = [tmp_path / f"{number}.1" for number in range(40)]
    for home in homes:
        home.mkdir()
    users = [Users(tmp_path, UserRange(70_000, 70_039), OWNER) for _ in range(2)]
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


NUMBERS = st.integers(0, LIMIT - 1)


@given(owner=NUMBERS, own=NUMBERS, further=st.sets(st.one_of(NUMBERS, st.integers(0, 9)), max_size=MAX_GROUPS))
@example(owner=1000, own=0, further={0, 6})
@example(owner=60_000, own=60_000, further=set())
def test_nothing_but_the_owners_is_shown_as_a_kernels_own(owner: int, own: int, further: set[int]) -> None:
    text = translated(owner, own, further)
    # Linux takes a page at the most, and 340 lines.
    assert len(text) < 4096
    lines = [tuple(map(int, line.split())) for line in text.splitlines()]
    for side in (0, 1):
        end = 0
        for *starts, count in sorted(lines, key=lambda line, side=side: line[side]):  # type: ignore[misc]
            assert starts[side] >= end
            end = starts[side] + count

    def shown(number: int) -> int:
        return next(first + number - begin for begin, first, count in lines if begin <= number < begin + count)

    assert shown(owner) == own
    for number in {own, *further} - {owner}:
        assert shown(number) >= LIMIT
    for number in {0, 6, owner - 1, owner + 1, own - 1, own + 1, LIMIT - 1} - {owner, own, *further, -1, LIMIT}:
        assert shown(number) == number


def test_where_owners_cannot_be_translated_the_user_is_the_owner(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "scratch" / "a.1").mkdir(parents=True)
    ann = Owner(1_234, 5_678)
    plain, proc = Mount(str(tmp_path), "data", "/data", owner=ann), Mount("/proc", "sys", "/data")
    assert required_owner((), OWNER) is None
    assert required_owner((plain,), OWNER) is None
    assert required_owner((plain, proc), OWNER) == OWNER
    assert required_owner((plain, replace(proc, owner=ann)), OWNER) == ann
    assert required_owner((Mount(str(tmp_path), "missing", "/data"),), OWNER) is None
    home = tmp_path / "scratch" / "a.1"
    users = Users(home.parent, SMALL, OWNER)
    assert users.assign(home, (plain, proc)) == OWNER
    assert users.assign(home, (replace(proc, owner=ann),)) == ann
    assert (home.stat().st_uid, home.stat().st_gid) == (1_234, 5_678)


def test_who_sees_a_mount_whose_owners_cannot_be_translated() -> None:
    """A kernel with the owner's numbers and no others; no other one."""
    directory = os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY)
    try:
        with OwnerMaps(OWNER, OWNER) as maps:
            os.close(maps.clone(directory, 0, None))
            with pytest.raises(ForeignOwnerError, match="belong to 1234:5678, but the kernel runs as 60000:60000"):
                maps.clone(directory, 0, Owner(1_234, 5_678))
        for user in (Owner(70_000, 60_000), Owner(60_000, 0)):
            with OwnerMaps(user, OWNER) as maps, pytest.raises(ForeignOwnerError, match="no ID-mapped"):
                maps.clone(directory, 0, None)
        with OwnerMaps(OWNER, OWNER, {6}) as maps, pytest.raises(ForeignOwnerError, match="further groups"):
            maps.clone(directory, 0, None)
    finally:
        os.close(directory)
