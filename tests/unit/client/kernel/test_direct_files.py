"""Whether a copy goes by the node or by the streams when the node is not reached."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.client.errors import CallError, NotFound, Unavailable
from retinue.client.kernel import direct_files
from retinue.types.v1 import file_pb2


@pytest.mark.parametrize(
    ("error", "continues", "raised"),
    [
        (Unavailable("the agent is away"), False, False),
        # By the streams, what is there by now would be sent again.
        (Unavailable("the agent is away"), True, True),
        (NotFound("there is no such session"), True, False),
    ],
)
async def test_a_copy_that_was_begun_by_the_node_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, error: CallError, continues: bool, raised: bool
) -> None:
    class Refused:
        def __init__(self, *_: object, **_options: object) -> None:
            pass

        async def __aenter__(self) -> None:
            raise error

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(direct_files, "PortConnection", Refused)
    unused: Any = None
    opening = direct_files.direct_files(
        unused, "s", "", file_pb2.FILE_ACCESS_UPLOAD, "localhost:1", continues=continues
    )
    if raised:
        with pytest.raises(Unavailable, match="away"):
            await opening.__aenter__()
    else:
        async with opening as past:
            assert past is None
