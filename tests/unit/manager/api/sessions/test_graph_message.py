"""Sessions beside each other: what one manager does not know of one costs nothing of the others."""

from __future__ import annotations

import uuid

from retinue.manager.api.sessions.convert import node_message
from retinue.manager.domain.session.states import Result, SessionState
from retinue.manager.store.sessions.dependencies import GraphNode
from retinue.manager.v1 import session_pb2 as pb


def test_a_result_of_another_version_costs_that_session_only() -> None:
    def node(result: Result | None) -> GraphNode:
        return GraphNode(
            id=uuid.uuid4(), number=1, name="a", state=SessionState.TERMINATED, result=result, reason="", depends_on=(), retries=0,
            start_time=None, end_time=None,
        )  # fmt: skip

    messages = [node_message(node(Result.SUCCESS)), node_message(node(None))]
    assert [shown.result for shown in messages] == [pb.SESSION_RESULT_SUCCESS, pb.SESSION_RESULT_UNSPECIFIED]
