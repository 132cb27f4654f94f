"""Each reply of a call that changes something says where the journal is."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from tests.unit.manager.contract import methods

# What nodes call: they do not watch.
ENROLLMENT = "EnrollmentService"
KINDS = {"revision": FieldDescriptor.TYPE_INT64, "incarnation": FieldDescriptor.TYPE_STRING}


def test_each_reply_has_the_revision() -> None:
    without = []
    for method in methods():
        streams = method.client_streaming or method.server_streaming
        if streams or method.containing_service.name == ENROLLMENT:
            continue
        fields = {field.name: field.type for field in method.output_type.fields}
        if KINDS.items() - fields.items():
            without.append(method.full_name)
    assert without == []
