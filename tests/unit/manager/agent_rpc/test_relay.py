"""Errors of agents as the manager passes them on."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, translated
from retinue.rpc.core.errors import ApiError, Code, InvalidRequest, ServiceError
from retinue.rpc.errors import grpc_code, status_of


def received(error: ApiError, *, reverse: bool = False) -> grpc.aio.AioRpcError:
    """Returns an agent's error as its caller receives it, with its details in either order."""
    status = status_of(error)
    if reverse:
        details_before = list(status.details)
        del status.details[:]
        status.details.extend(reversed(details_before))
    details = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc_code(error.code), grpc.aio.Metadata(), details, str(error))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_error_about_a_field_names_the_field_and_what_is_wrong_with_it(reverse: bool) -> None:
    sent = InvalidRequest([("start.path", "must be relative"), ("start.mode", "is odd")])
    error = translated("n1", received(sent, reverse=reverse))
    assert isinstance(error, AgentRefusedError)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert (str(error), error.metadata) == ("must be relative", {"field": "start.path"})


def test_an_error_keeps_its_reason_and_values() -> None:
    sent = ServiceError(Code.FAILED_PRECONDITION, "PORT_CLOSED", "nothing listens on port 80", port="80")
    error = translated("n1", received(sent))
    assert isinstance(error, AgentRefusedError)
    assert (error.reason, error.metadata, str(error)) == ("PORT_CLOSED", {"port": "80"}, "nothing listens on port 80")


def test_an_error_without_a_reason_is_that_of_a_connection() -> None:
    broken = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "192.0.2.1 is away"
    )
    error = translated("n1", broken)
    assert isinstance(error, AgentUnavailableError)
    assert "192.0.2.1" not in str(error)
