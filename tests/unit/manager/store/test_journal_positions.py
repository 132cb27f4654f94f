"""Each reply of a call that changes something says where the journal is."""

from __future__ import annotations

from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.unit.manager.contract import methods

# What nodes call: they do not watch.
ENROLLMENT = "EnrollmentService"


def test_each_reply_has_the_position() -> None:
    without = []
    for method in methods():
        streams = method.client_streaming or method.server_streaming
        if streams or method.containing_service.name == ENROLLMENT:
            continue
        field = method.output_type.fields_by_name.get("position")
        if field is None or field.message_type is not JournalPosition.DESCRIPTOR:
            without.append(method.full_name)
    assert without == []
