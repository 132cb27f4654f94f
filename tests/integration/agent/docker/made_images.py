"""Images that are put into a registry piece by piece, as other builders write them, and what is no image at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from tests.integration.agent.docker.engine import BUSYBOX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIGURATION = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
HERE = {"architecture": "amd64", "os": "linux"}


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer(files: Mapping[str, bytes], programs: Sequence[str] = ()) -> bytes:
    """Returns a layer, not compressed; `programs` are paths at which it has the static busybox."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in programs:
            archive.add(BUSYBOX.resolve(), path)
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def configuration(layers: Sequence[bytes], config: Mapping[str, Any] | None = None, **others: Any) -> bytes:
    """Returns an image's configuration over layers that are not compressed."""
    diff_ids = [digest_of(layer) for layer in layers]
    content = {**HERE, "config": dict(config or {}), "rootfs": {"type": "layers", "diff_ids": diff_ids}, **others}
    return json.dumps(content).encode()


def descriptor(kind: str, content: bytes, **others: Any) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": digest_of(content), **others}


@dataclass(frozen=True)
class Repository:
    """A repository of a registry at `HOST:PORT` that anyone may push to."""

    address: str
    name: str

    def reference(self, tag: str) -> str:
        return f"{self.address}/{self.name}:{tag}"

    def answers(self) -> bool:
        try:
            self.blob(b"")
        except OSError:
            return False
        return True

    def _send(self, method: str, url: str, content: bytes, kind: str) -> str:
        request = urllib.request.Request(  # noqa: S310  # of this test
            urljoin(f"http://{self.address}/v2/{self.name}/", url),
            content,
            {"Content-Type": kind, "Content-Length": str(len(content))},
            method=method,
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return str(answer.headers.get("Location", ""))

    def blob(self, content: bytes) -> None:
        location = self._send("POST", "blobs/uploads/", b"", "application/octet-stream")
        separator = "&" if "?" in location else "?"
        self._send("PUT", f"{location}{separator}digest={digest_of(content)}", content, "application/octet-stream")

    def manifest(self, tag: str, content: Mapping[str, Any]) -> bytes:
        """Puts a manifest or an index under a tag, or a digest if that is empty; returns its bytes."""
        data = json.dumps(content).encode()
        self._send("PUT", f"manifests/{tag or digest_of(data)}", data, content["mediaType"])
        return data

    def image(
        self,
        tag: str,
        layers: Sequence[bytes],
        config: bytes,
        *,
        kinds: tuple[str, str] = (OCI_CONFIGURATION, OCI_LAYER),
        stored: Sequence[bytes] | None = None,
    ) -> bytes:
        """Puts an image there, of layers that it compresses, or of others than its configuration has."""
        packed = [gzip.compress(layer, mtime=0) for layer in layers] if stored is None else list(stored)
        for content in (config, *packed):
            self.blob(content)
        return self.manifest(
            tag,
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": descriptor(kinds[0], config),
                "layers": [descriptor(kinds[1], content) for content in packed],
            },
        )
