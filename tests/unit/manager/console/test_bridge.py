"""The methods that browsers may call."""

from __future__ import annotations

from retinue.manager.console.bridge import METHODS
from retinue.manager.server.authorization import METHODS as AUTHORIZED
from retinue.manager.server.authorization import Access


def test_all_methods_for_users_pass_and_no_other() -> None:
    for_users = {method for method, access in AUTHORIZED.items() if access in (Access.USER, Access.ADMIN)}
    assert METHODS.keys() == for_users
    assert len(METHODS) > 80


def test_streams_are_known_as_such() -> None:
    service = "/retinue.manager.v1.KernelService"
    assert METHODS["/retinue.manager.v1.SessionService/GetSession"] is False
    assert METHODS["/retinue.manager.v1.SessionService/WatchSessions"] is True
    assert (METHODS[f"{service}/Attach"], METHODS[f"{service}/UploadFiles"]) == (True, True)
