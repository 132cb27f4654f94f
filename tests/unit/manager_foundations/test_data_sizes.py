"""Large messages are for a few tunnels of each user, and for a few of all users."""

from __future__ import annotations

import contextlib

from retinue.manager.agent_rpc.dialer import WINDOW_BYTES
from retinue.manager.api.streams.data_sizes import (
    LARGE,
    MAX_LARGE_TUNNELS,
    MAX_LARGE_TUNNELS_PER_USER,
    SMALL,
    LargeTunnels,
)


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
