"""Large messages are for a few tunnels of each user, and for a few of all users."""

from __future__ import annotations

import contextlib
from pathlib import Path

from retinue.manager.agent_rpc.data_sizes import (
    LARGE,
    LARGE_AFTER_BYTES,
    MAX_LARGE_TUNNELS,
    MAX_LARGE_TUNNELS_PER_USER,
    SMALL,
    LargeTunnels,
    MessageLimit,
)
from retinue.manager.agent_rpc.dialer import WINDOW_BYTES


def test_a_small_message_and_the_window_hold_no_more_than_64_kib() -> None:
    assert max(SMALL.to_kernel, SMALL.from_kernel) + WINDOW_BYTES <= 64 * 1024


def test_the_first_tunnels_of_each_user_are_large() -> None:
    tunnels = LargeTunnels()
    with contextlib.ExitStack() as stack:
        sizes = [stack.enter_context(tunnels.assign("ann")) for _ in range(MAX_LARGE_TUNNELS_PER_USER + 1)]
        assert sizes == [LARGE] * MAX_LARGE_TUNNELS_PER_USER + [SMALL]
        assert stack.enter_context(tunnels.assign("bob")) == LARGE
    with tunnels.assign("ann") as again:
        assert again == LARGE


def test_large_tunnels_of_all_users_are_bounded() -> None:
    tunnels = LargeTunnels()
    with contextlib.ExitStack() as stack:
        sizes = [stack.enter_context(tunnels.assign(f"user-{number}")) for number in range(MAX_LARGE_TUNNELS + 5)]
        assert sizes.count(LARGE) == MAX_LARGE_TUNNELS
        assert sizes[-5:] == [SMALL] * 5


def test_messages_grow_only_after_more_than_unread_sockets_hold() -> None:
    limit, sent = MessageLimit(LARGE.to_kernel), 0
    while sent < LARGE_AFTER_BYTES:
        assert limit.current == SMALL.to_kernel
        limit.count(limit.current)
        sent += SMALL.to_kernel
    assert limit.current == LARGE.to_kernel
    # A receiving socket grows only as its program reads.
    received, unsent = (Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text().split() for name in ("rmem", "wmem"))
    assert sent > int(received[1]) + int(unsent[2])
