"""What others wrote can be sent to the manager, whatever it is."""

from __future__ import annotations

import pytest

from retinue.agent.api.convert import attempt_status
from retinue.agent.attempts import ObservedAttempt, Phase
from retinue.agent.docker.core.image_labels import LabelError, read_labels
from retinue.rpc.core.amounts import parse_amount

HOSTILE = ["a\0b", "\x1b[2J", "\udcff", "\u202eabc", "line\nline", "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE)
def test_words_of_others_are_fit_to_be_sent_and_shown(text: str) -> None:
    attempt = ObservedAttempt("k.1", "s", "k", False, Phase.FAILED, reason=text, message=text)
    for status in (attempt_status("k.1", attempt), attempt_status("k.1", None, text)):
        assert status.SerializeToString()
        assert status.message.isprintable()
        assert len(status.message) <= 4096
    assert attempt_status("k.1", attempt).reason.isprintable()


def test_labels_with_anything_in_their_names_are_errors_in_plain_words() -> None:
    for labels in ({"ai.backend.resource.min.\0x": "1"}, {"ai.backend.resource.min.cpu": "\0"}):
        with pytest.raises(LabelError) as raised:
            read_labels(labels)
        assert str(raised.value).isprintable()
    with pytest.raises(ValueError, match="suffix") as suffixed:
        parse_amount("cpu", "1g")
    assert str(suffixed.value).isprintable()
