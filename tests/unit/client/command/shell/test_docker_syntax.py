"""Mounts and ports, as they are typed here and by users of Docker."""

from __future__ import annotations

import pytest

from retinue.client.command.shell.docker_syntax import Mount, Port, parse_mount, parse_port
from retinue.client.errors import UsageError


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", ("/a", "/b", False)),
        ("/a:/b:ro", ("/a", "/b", False)),
        ("/a:/b:rw", ("/a", "/b", True)),
        ("/a=1,x:/b", ("/a=1,x", "/b", False)),
        ("/größe/a b:/b", ("/größe/a b", "/b", False)),
        ("type=bind,source=/a,target=/b", ("/a", "/b", True)),
        ("type=bind,src=/a,dst=/b,readonly", ("/a", "/b", False)),
        ("source=/a,destination=/b,ro", ("/a", "/b", False)),
        ("type=bind,source=/a:1,target=/b,readonly=false", ("/a:1", "/b", True)),
    ],
)
def test_a_mount(text: str, mount: Mount) -> None:
    assert parse_mount(text) == mount


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no volumes"),
        ("/a", "is not SRC:DST"),
        ("/a:", "is not SRC:DST"),
        ("/a:/b:rx", "is not SRC:DST"),
        ("/a:/b:ro,z", "is not SRC:DST"),
        ("data:/b", "no volumes"),
        ("./a:/b", "no volumes"),
        ("type=volume,source=data,target=/b", "only type=bind"),
        ("type=tmpfs,target=/b", "only type=bind"),
        ("type=bind,source=/a,target=/b,bind-propagation=rslave", "bind-propagation has no counterpart"),
        ("type=bind,source=/a", "is not type=bind"),
        ("type=bind,source=/a,target=/b,readonly=perhaps", "is not type=bind"),
    ],
)
def test_what_is_no_mount(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_mount(text)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("web:8000", ("web", "", 8000)),
        ("web:http:8000", ("web", "http", 8000)),
        ("a.b-c:1", ("a.b-c", "", 1)),
        ("web:http:8000:host=localhost", ("web", "http", 8000, "localhost")),
    ],
)
def test_a_port(text: str, port: Port) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8000", "-p web:8000, and `retinue port-forward SESSION web`"),
        ("8080:80", "-p web:80, and `retinue port-forward SESSION web:8080`"),
        ("8080:80/tcp", "-p web:80, and `retinue port-forward SESSION web:8080`"),
        ("127.0.0.1:8080:80", "-p web:80, and `retinue port-forward SESSION web:8080`"),
        ("127.0.0.1::80", "-p web:80, and `retinue port-forward SESSION web`"),
        ("[::1]:8080:80", "-p web:80, and `retinue port-forward SESSION web:8080`"),
        ("8000-8010:8000-8010", "is not NAME"),
        ("53:53/udp", "only TCP"),
        ("web", "such as web:8000"),
        ("web:", "such as web:8000"),
        ("web:x", "such as web:8000"),
        ("web:0", "such as web:8000"),
        ("web:65536", "such as web:8000"),
        ("web:٣", "such as web:8000"),
        ("a:b:c:1", "is not NAME"),
        ("web:http:8000:host=", "is not NAME"),
        ("host=localhost:8000:x", "is not NAME"),
        ("", "is not NAME"),
    ],
)
def test_what_is_no_port(text: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_port(text)
    assert why in str(raised.value)
