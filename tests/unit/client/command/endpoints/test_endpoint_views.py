"""What is said of addresses that this machine may not resolve."""

from __future__ import annotations

import socket

import pytest

from retinue.client.command.endpoints.endpoint_views import say_unresolved

LOCAL = "http://shop-1.localhost:7443"


def unknown(*_: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


def known(*_: object) -> list[object]:
    return []


def test_the_way_without_the_name_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    say_unresolved(f"{LOCAL}/v1/models")
    said = capsys.readouterr()
    assert said.out == ""
    assert "use http://127.0.0.1:7443/v1/models with the header `Host: shop-1.localhost:7443`" in said.err
    assert "add `127.0.0.1 shop-1.localhost` to /etc/hosts" in said.err


@pytest.mark.parametrize(("url", "look_up"), [(LOCAL, known), ("https://shop.example.org", unknown), ("", unknown)])
def test_nothing_is_said_of_other_addresses(
    url: str, look_up: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    say_unresolved(url)
    assert capsys.readouterr() == ("", "")
