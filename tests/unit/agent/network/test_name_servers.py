"""Which name servers kernels are given."""

from __future__ import annotations

from retinue.agent.network.name_servers import parse_resolver, resolver_text


def test_servers_on_the_node_itself_are_left_out() -> None:
    resolver = "# a comment\nnameserver 127.0.0.53\nnameserver 10.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nsearch a.example b.example\n"
    assert parse_resolver(resolver) == (("10.0.0.53",), ("a.example", "b.example"))
    assert parse_resolver("nameserver\nnameserver nonsense\noptions rotate\n") == ((), ())


def test_no_more_than_resolvers_read_and_each_once() -> None:
    resolver = "".join(f"nameserver 192.0.2.{number}\n" for number in (1, 1, 2, 3, 4))
    assert parse_resolver(resolver)[0] == ("192.0.2.1", "192.0.2.2", "192.0.2.3")


def test_text() -> None:
    assert resolver_text(("192.0.2.1", "192.0.2.2"), ("a.example",)) == (
        "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a.example\noptions no-aaaa timeout:2\n"
    )
    assert resolver_text((), ("a.example",)) == "# This node has no name server that kernels can reach.\n"
