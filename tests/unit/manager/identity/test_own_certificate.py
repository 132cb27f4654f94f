"""Certificates of the manager's own are renewed in time, while it runs."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from cryptography import x509

from retinue.manager.identity.authority import Authority
from retinue.manager.identity.own_certificate import OwnCertificate

if TYPE_CHECKING:
    from pathlib import Path

YEAR = dt.timedelta(days=365)


class Clock:
    def __init__(self) -> None:
        self.now = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now


def test_a_certificate_is_issued_again_after_two_thirds_of_its_life(tmp_path: Path) -> None:
    clock = Clock()
    authority = Authority.load(tmp_path, clock)
    own = OwnCertificate(authority, authority.issue_manager_client)
    first = own.current()
    begin, life = clock.now, first.expire_time - clock.now
    clock.now = begin + life * 0.66
    assert own.current() is first
    clock.now = begin + life * 0.67
    second = own.current()
    assert second.expire_time == clock.now + life
    assert own.current() is second


def test_a_certificate_outlives_the_former_one_of_its_authority(tmp_path: Path) -> None:
    clock = Clock()
    authority = Authority.load(tmp_path, clock)
    clock.now += 9 * YEAR
    own = OwnCertificate(authority, authority.issue_manager_client)
    end = authority.expire_time
    assert own.current().expire_time == end
    before = authority.derive_key("sessions"), authority.fingerprint
    assert authority.adopt(authority.renewed())
    assert own.current().expire_time > end
    # What is derived of its key stays.
    assert (authority.derive_key("sessions"), authority.fingerprints[1]) == before
    authority.save(tmp_path)
    assert Authority.load(tmp_path, clock).fingerprints == authority.fingerprints
    # Those that have ended go with the next renewal.
    clock.now += 2 * YEAR
    assert len(x509.load_pem_x509_certificates(authority.renewed())) == 2


def test_certificates_of_another_key_are_not_taken_up(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "other").mkdir()
    authority, other = Authority.load(tmp_path, clock), Authority.load(tmp_path / "other", clock)
    before = authority.certificate
    for wrong in (other.certificate, before + other.certificate, b"", b"nonsense"):
        assert not authority.adopt(wrong)
    assert authority.certificate == before
