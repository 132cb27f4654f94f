"""Which host names an endpoint may not have."""

from __future__ import annotations

import pytest

from retinue.manager.domain.endpoints.hosts import OwnHosts, refusal

OWN = OwnHosts("models.test", "ports.test", frozenset({"manager.site.test"}))


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("llm-0123abcd.models.test", "is in models.test"),
        ("models.test", "is in models.test"),
        ("deep.under.models.test", "is in models.test"),
        ("console.ports.test", "is in ports.test"),
        ("p8000-0123456789abcdef0123456789abcdef.ports.test", "is in ports.test"),
        ("manager.site.test", "is a name of the manager"),
        ("router.site.test", "is the name of a router"),
        ("192.0.2.7", "must be a host name"),
    ],
)
def test_names_of_the_installation_are_refused(host: str, words: str) -> None:
    assert words in refusal(host, OWN, {"router.site.test"})


@pytest.mark.parametrize("host", ["llm.site.test", "notmodels.test", "models.test.other.test", "site.test"])
def test_all_others_may_be_had(host: str) -> None:
    assert not refusal(host, OWN, {"router.site.test"})


def test_without_a_gateway_there_is_no_domain_of_ports() -> None:
    assert not refusal("a.ports.test", OwnHosts("models.test"))
