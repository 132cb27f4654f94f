"""What is sent to webhooks, where they may be, and what is kept secret."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import time
import uuid

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from retinue.manager.domain.session.events import Condition, ReasonChanged, SessionMoved, UnreadableEvent
from retinue.manager.domain.session.spec import SessionSpec, WebhookSpec
from retinue.manager.domain.session.spec_codec import encode
from retinue.manager.domain.session.states import Result, SessionState, SessionType
from retinue.manager.domain.webhooks import rules
from retinue.manager.webhooks.seal import seal, unseal
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::127.0.0.1",
        "::10.0.0.1",
        "fec0::1",
        "feff::1",
    ],
)
def test_inner_addresses_are_not_dialled(address: str) -> None:
    assert not PUBLIC_ONLY.permits(address)


def test_what_is_allowed_and_what_is_denied() -> None:
    assert PUBLIC_ONLY.permits("1.1.1.1")
    assert PUBLIC_ONLY.permits("2606:4700::1111")
    policy = AddressPolicy(
        (ipaddress.ip_network("10.0.0.0/8"),), (ipaddress.ip_network("10.9.0.0/16"), ipaddress.ip_network("1.1.1.0/24"))
    )
    assert policy.permits("10.1.2.3")
    assert policy.permits("::ffff:10.1.2.3")
    assert not policy.permits("10.9.1.1")
    assert not policy.permits("1.1.1.1")
    assert not policy.permits("192.168.1.1")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/",
        "http://",
        "http://a b/",
        "http://u:p@x/",
        "http://x:0/",
        "http://x:99999/",
        "http://x/\r\nA: b",
        "file:///etc/passwd",
        "http://x/" + "a" * 2048,
        "http://ä/",
        "x",
    ],
)
def test_wrong_urls(url: str) -> None:
    assert rules.wrong_url(url)


def test_which_webhook_gets_what() -> None:
    over = rules.events_of(SessionMoved(SessionState.TERMINATING, SessionState.TERMINATED, Result.FAILED))
    ending = rules.events_of(SessionMoved(SessionState.RUNNING, SessionState.TERMINATING, Result.FAILED))
    assert rules.events_of(UnreadableEvent("SESSION_MOVED", "")) == rules.events_of(ReasonChanged("", "")) == ()
    assert rules.wanted((), over) == "TERMINATED"
    assert rules.wanted(("SUCCEEDED",), over) == ""
    assert rules.wanted(("FAILED", "TERMINATED"), over) == "FAILED"
    assert rules.wanted(("FAILED",), ending) == "", "the result is sent at the end, once"
    assert rules.wanted(("CREATED", "TERMINATED"), ("CREATED",)) == "CREATED"


def test_a_warning_is_sent_once() -> None:
    conditions = (
        Condition("AGENT_LOST", "gone"),
        Condition("INTERACTION_WARNING", "unused"),
        Condition("LIFETIME_WARNING", "old"),
    )
    warned = ReasonChanged("", "", conditions, ("LIFETIME_WARNING", "AGENT_LOST"))
    assert rules.events_of(warned) == ("IDLE_WARNING",)
    assert rules.events_of(ReasonChanged("", "", conditions, ("AGENT_LOST",))) == (), "it was there before"
    assert rules.wanted((), ("IDLE_WARNING",)) == "", "a receiver without event types gets the end only"
    entry = rules.SessionEntry(
        revision=7,
        create_time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        session_id=uuid.UUID(int=1),
        name="n",
        owner="o",
        project="p",
        body=warned,
    )
    parsed = json.loads(rules.body_of("IDLE_WARNING", entry))["session"]
    assert (parsed["state"], parsed["reason"], parsed["message"]) == ("RUNNING", "LIFETIME_WARNING", "old")


def test_the_body_is_signed() -> None:
    entry = rules.SessionEntry(
        revision=7,
        create_time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        session_id=uuid.UUID(int=1),
        name="n",
        owner="o",
        project="p",
        body=SessionMoved(
            SessionState.TERMINATING, SessionState.TERMINATED, Result.SUCCESS, exit_code=0, reason="COMMAND_ENDED"
        ),
    )
    body = rules.body_of("SUCCEEDED", entry)
    parsed = json.loads(body)
    assert (parsed["event"], parsed["revision"], parsed["session"]["exitCode"], parsed["session"]["result"]) == (
        "SUCCEEDED",
        7,
        0,
        "SUCCESS",
    )
    secret, now = f"whsec_{base64.b64encode(b'x' * 24).decode()}", int(time.time())
    headers = rules.headers_of("msg_7", "SUCCEEDED", body, secret, now)
    # As any receiver does it, with the specification's own library.
    assert Webhook(secret).verify(body, headers) == parsed
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_7", str(now))
    for changed in ({"webhook-id": "msg_8"}, {"webhook-timestamp": str(now + 1)}):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, headers | changed)
    assert "webhook-signature" not in rules.headers_of("msg_7", "SUCCEEDED", body, "", now)


def test_the_signature_of_the_specification_s_example() -> None:
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", '{"test": 2432232314}'
    headers = rules.headers_of("msg_p5jXN8AQM9LWM0D4loKWxJek", "CREATED", body, secret, 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("length", [24, 64])
def test_secrets_of_the_specification_are_taken(length: int) -> None:
    assert rules.wrong_secret(f"whsec_{base64.b64encode(bytes(length)).decode()}") == ""
    assert rules.wrong_secret("") == ""


@pytest.mark.parametrize(
    "secret",
    [
        "s3cret",
        "whsec_",
        "whsec_not base64, but long enough all the same",
        "whsec_ä" + "A" * 31,
        "A" * 32,
        f"whsec_{base64.b64encode(bytes(23)).decode()}",
        f"whsec_{base64.b64encode(bytes(65)).decode()}",
        f"whsec_{base64.b64encode(bytes(32)).decode()}\n",
    ],
)
def test_other_secrets_are_refused(secret: str) -> None:
    assert "whsec_" in rules.wrong_secret(secret)


def test_pauses_grow_and_end() -> None:
    assert [rules.pause(tries) for tries in (1, 2, 3, 20)] == [1.0, 2.0, 4.0, 3600.0]
    assert rules.pause(rules.MAX_TRIES) is None


@pytest.mark.attack("secrets-in-logs")
def test_secrets_are_in_no_row_and_no_text() -> None:
    webhook = WebhookSpec("http://x/", (), "s3cret")
    spec = SessionSpec("n", "p", "g", SessionType.BATCH, webhooks=(webhook,))
    assert "s3cret" not in json.dumps(encode(spec)) + repr(spec)
    sealed = seal("s3cret")
    assert b"s3cret" not in sealed
    assert seal("s3cret") != sealed
    assert (unseal(sealed), unseal(seal(""))) == ("s3cret", "")
    with pytest.raises(ValueError, match="another key"):
        unseal(bytes(sealed[:-1]) + bytes([sealed[-1] ^ 1]))
