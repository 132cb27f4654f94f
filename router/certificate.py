"""The certificate of one's own that clients see: read again when its files change,
so that a renewal needs no restart.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retinue.router.core.table import Table

_log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Pause between two looks at the files."""


class OwnCertificate:
    """Puts a certificate of one's own into each table, in place of the manager's; belongs on one event loop."""

    def __init__(self, chain: Path, private_key: Path, follow: Callable[[Table], None]) -> None:
        """Reads the files, blocking; `follow` gets the tables. Raises OSError and ValueError."""
        self._files = chain, private_key
        self._follow = follow
        self._pair = _read(*self._files)
        self._table: Table | None = None
        self.looks = 0
        """How often the files were looked at since."""

    def follow(self, table: Table) -> None:
        """Gives a table on, with this certificate in it."""
        self._table = table
        chain, private_key = self._pair
        self._follow(replace(table, common=replace(table.common, certificate=chain, private_key=private_key)))

    async def watch(self) -> None:
        """Takes what is in the files whenever that is another pair, until cancelled; connections that are open stay."""
        said = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                pair = await asyncio.to_thread(_read, *self._files)
            except (OSError, ValueError) as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("clients see the former certificate: %s", error)
                continue
            finally:
                self.looks += 1
            said = ""
            if pair != self._pair:
                self._pair = pair
                _log.info("clients see the new certificate of %s", self._files[0])
                if self._table is not None:
                    self.follow(self._table)


def _read(chain: Path, private_key: Path) -> tuple[str, str]:
    """Returns both in PEM. Raises OSError, and ValueError when they are none or do not belong together."""
    texts = chain.read_text(), private_key.read_text()
    try:
        certificate = x509.load_pem_x509_certificates(texts[0].encode())[0]
        key = load_pem_private_key(texts[1].encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{chain} and {private_key}: {error}") from error
    if certificate.public_key() != key.public_key():
        raise ValueError(f"{chain} is not the certificate of the key in {private_key}")
    return texts
