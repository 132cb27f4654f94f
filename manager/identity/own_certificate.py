"""Certificates of the manager's own, which are issued again in time while it runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.manager.identity.authority import Authority, Certificate


class OwnCertificate:
    """A certificate that is renewed after two thirds of its life, and when the authority has another one itself.
    Safe to call from any thread.
    """

    def __init__(self, authority: Authority, issue: Callable[[], Certificate]) -> None:
        """Issues the first."""
        self._authority = authority
        self._issue = issue
        self._lock = threading.Lock()
        self._renew()

    def current(self) -> Certificate:
        """Returns the certificate to show now: the same one until it is time for another."""
        with self._lock:
            if self._authority.now >= self._due or self._authority.fingerprint != self._of:
                self._renew()
            return self._certificate

    def _renew(self) -> None:
        now = self._authority.now
        self._of = self._authority.fingerprint
        self._certificate = self._issue()
        self._due = now + (self._certificate.expire_time - now) * 2 / 3
