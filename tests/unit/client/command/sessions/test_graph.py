"""Graphs of sessions as trees of text."""

from __future__ import annotations

from retinue.client.command.sessions.graph import changes, lines
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb


def node(name: str, *parents: str, state: str = "PENDING", result: str = "UNDEFINED") -> pb.SessionNode:
    return pb.SessionNode(
        id=f"{name}-id",
        name=name,
        depends_on=[f"{parent}-id" for parent in parents],
        state=session_pb2.SessionState.Value(f"SESSION_STATE_{state}"),
        result=session_pb2.SessionResult.Value(f"SESSION_RESULT_{result}"),
    )


def test_every_session_once_under_the_last_before_it() -> None:
    graph = pb.GetSessionGraphResponse(
        nodes=[
            node("a", state="TERMINATED", result="SUCCESS"),
            node("b", "a", state="RUNNING"),
            node("c", "a"),
            node("d", "b", "c"),
            node("e", "d"),
            node("f"),
        ]
    )
    assert [
        line.plain.split("  ")[0] if line.plain[0].isalpha() else line.plain[: line.plain.index("-id")]
        for line in lines(graph)
    ] == [
        "a",
        "├─ b  b",
        "└─ c  c",
        "   └─ d  d",
        "      └─ e  e",
        "f",
    ]
    shown = [line.plain for line in lines(graph)]
    assert shown[0] == "a  a-id  SUCCESS"
    assert shown[3].endswith("PENDING  after b, c")


def test_a_long_chain_needs_no_recursion() -> None:
    graph = pb.GetSessionGraphResponse(nodes=[node("n0"), *(node(f"n{n}", f"n{n - 1}") for n in range(1, 3000))])
    assert len(lines(graph)) == 3000
    assert max(len(line.plain) for line in lines(graph)) < 120


def test_changes_are_of_states() -> None:
    before = pb.GetSessionGraphResponse(nodes=[node("a", state="RUNNING"), node("b", "a")])
    after = pb.GetSessionGraphResponse(
        nodes=[node("a", state="TERMINATED", result="FAILED"), node("b", "a"), node("c", "b")]
    )
    assert [line.plain.split("  ")[0] for line in changes(before, after)] == ["a", "c"]
    assert changes(after, after) == []
