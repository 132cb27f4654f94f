"""Answers of a Prometheus server: the sum of what they have, or nothing."""

from __future__ import annotations

import json

import pytest

from retinue.manager.endpoints.queries import QueryError, read_answer


def vector(*values: str) -> dict[str, object]:
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (vector("1"), 1.0),
        (vector("1", "-3"), -2.0),
        ({"data": {"resultType": "scalar", "result": [1, "4"]}}, 4.0),
        (vector(), None),
        (vector("NaN", "1"), None),
        (vector("+Inf"), None),
        ({"data": {"resultType": "matrix", "result": [{"values": [[1, "4"]]}]}}, None),
        ({"data": {"resultType": "string", "result": [1, "x"]}}, None),
        ({"status": "error", "error": "bad query"}, None),
        ([], None),
        (7, None),
    ],
)
def test_answers(body: object, value: float | None) -> None:
    raw = json.dumps(body).encode()
    if value is None:
        with pytest.raises(QueryError):
            read_answer(raw)
    else:
        assert read_answer(raw) == value
    with pytest.raises(QueryError):
        read_answer(raw[:-1] if len(raw) > 1 else b"[" * 100_000)
