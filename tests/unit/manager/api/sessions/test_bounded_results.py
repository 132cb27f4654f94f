"""The answer to many requests is one that clients can take, however much is wrong with them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from google.rpc.error_details_pb2 import ErrorInfo

from retinue.manager.api.sessions.requests import MAX_SPECS, bounded
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.rpc.errors import status_of

if TYPE_CHECKING:
    from google.rpc.status_pb2 import Status

CLIENT_BYTES = 4 * 1024 * 1024


def refused() -> pb.BatchCreateSessionsResult:
    error = InvalidRequest([("s" * 128, "d" * 200)] * 20)
    return pb.BatchCreateSessionsResult(refused=status_of(error))


def reason_of(status: Status) -> str:
    information = ErrorInfo()
    for detail in status.details:
        detail.Unpack(information)
    return str(information.reason)


def previewed() -> pb.BatchCreateSessionsResult:
    shortfall = pb.Shortfall(
        hostname="h" * 40, slot="cuda.device", requested="1", best_agent="a" * 63, free="0", short="1"
    )
    preview = pb.PlacementPreview(reason="NO_CAPACITY", message="m" * 400, shortfalls=[shortfall] * 20)
    return pb.BatchCreateSessionsResult(accepted=pb.AcceptedSession(name="n" * 63, preview=preview))


def accepted() -> pb.BatchCreateSessionsResult:
    return pb.BatchCreateSessionsResult(accepted=pb.AcceptedSession(id=str(uuid.UUID(int=7)), name="n" * 63))


def test_as_many_as_may_be_asked_for_fit() -> None:
    for make in (refused, previewed, accepted):
        made = make().SerializeToString()
        results = bounded(pb.BatchCreateSessionsResult.FromString(made) for _ in range(MAX_SPECS))
        assert len(results) == MAX_SPECS
        assert (
            pb.BatchCreateSessionsResponse(results=results, position=JournalPosition(revision=2**60)).ByteSize()
            < CLIENT_BYTES
        )
        # The first have all that is to be said, and the last what they are.
        assert results[0] == make()
        assert reason_of(results[-1].refused) == ("INVALID_FIELD" if make is refused else "")
        assert results[-1].accepted.preview.reason == ("NO_CAPACITY" if make is previewed else "")


def test_of_few_everything_is_said() -> None:
    assert bounded([refused(), accepted()]) == [refused(), accepted()]
