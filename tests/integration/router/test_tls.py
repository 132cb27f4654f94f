"""TLS to clients: versions of HTTP by ALPN, and a certificate that is renewed under open connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest

from retinue.router.certificate import OwnCertificate
from retinue.router.core.table import Revision
from tests.integration.agent.authority import Authority
from tests.integration.router.backends import Backend
from tests.integration.router.clients import read_answer
from tests.integration.router.running import HOST, Running, replicas, running, toy
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, authority: Authority) -> tuple[Path, Path, str]:
    key, certificate = authority.issue(HOST, "spiffe://retinue/clients")
    files = directory / "own.pem", directory / "own.key"
    files[0].write_text(certificate)
    files[1].write_text(key)
    return *files, certificate


class Client:
    """A connection by TLS that trusts one authority."""

    def __init__(self, authority: Authority, *protocols: str) -> None:
        self._context = ssl.create_default_context(cadata=authority.certificate)
        self._context.set_alpn_protocols(list(protocols))

    async def open(self, router: Running) -> None:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", router.port, ssl=self._context, server_hostname=HOST
        )
        self.tls: ssl.SSLObject = self.writer.get_extra_info("ssl_object")

    @property
    def seen(self) -> str:
        der = self.tls.getpeercert(binary_form=True)
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der).replace("\n", "")

    async def fetch(self, path: str = "/") -> int:
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        return (await read_answer(self.reader)).status


async def test_a_certificate_is_renewed_without_a_cut_and_never_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.router.certificate.POLL_SECONDS", 0.05)
    authority = Authority()
    chain, key, first = write(tmp_path, authority)
    async with running(tmp_path, tls=True) as router, Backend("a") as backend:
        own = OwnCertificate(chain, key, router.serving.set_table)
        router.follow = own.follow
        watching = asyncio.create_task(own.watch())
        try:
            await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
            await router.listening()
            kept = Client(authority, "http/1.1")
            await kept.open(router)
            assert (kept.tls.version(), kept.tls.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
            assert kept.seen == first.replace("\n", "")
            stream = asyncio.create_task(kept.fetch("/stream?8"))

            both = Client(authority, "h2", "http/1.1")
            await both.open(router)
            assert both.tls.selected_alpn_protocol() == "h2"

            # A chain without its key is not taken; with it, it is.
            applied = router.serving.applied
            old_key = key.read_text()
            _, _, second = write(tmp_path, authority)
            new_key = key.read_text()
            key.write_text(old_key)
            looks = own.looks + 2
            await eventually(lambda: own.looks >= looks)
            again = Client(authority)
            await again.open(router)
            assert again.seen == first.replace("\n", "")
            key.write_text(new_key)
            await eventually(lambda: router.serving.applied > applied)

            async def renewed() -> bool:
                client = Client(authority)
                await client.open(router)
                with contextlib.closing(client.writer):
                    assert await client.fetch() == 200
                    return client.seen == second.replace("\n", "")

            async with asyncio.timeout(NEVER):
                while not await renewed():
                    pass
            assert await stream == 200
            assert await kept.fetch() == 200
            for client in (kept, both, again):
                client.writer.close()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    chain, key, _ = write(tmp_path, Authority())
    other = tmp_path / "other"
    other.mkdir()
    _, other_key, _ = write(other, Authority())
    with pytest.raises(ValueError, match="is not the certificate of the key"):
        OwnCertificate(chain, other_key, lambda _: None)
    key.write_text("nothing")
    with pytest.raises(ValueError, match=r"own\.key"):
        OwnCertificate(chain, key, lambda _: None)
