"""Images that no build makes: what is said of them is put together by hand,
down to bytes that no JSON writer writes.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.integration.agent.docker.engine import IMAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.agent.docker.engine import TestEngine

NOT_UTF8 = "@not-utf8@"
"""Stands for bytes that are no UTF-8, in any text of a configuration."""
THEIR_MINIMUM = "ai.backend.resource.min."
LAYERS = 110
"""More than engines build, and few enough for them to load."""
RUNS, INVALID, NEEDS_MORE = "", "IMAGE_INVALID", "IMAGE_NEEDS_MORE"


@dataclass(frozen=True)
class HostileImage:
    """A configuration, and the reason that a session with it ends for: none when it runs."""

    reason: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 1


def _label(name: str, value: str, reason: str = INVALID) -> HostileImage:
    return HostileImage(reason, {"Labels": {name: value}})


def _minimum(value: str, reason: str = INVALID) -> HostileImage:
    return _label(f"{THEIR_MINIMUM}mem", value, reason)


IMAGES: dict[str, HostileImage] = {
    "long-other-label": _label("note", "x" * 500_000, RUNS),
    "long-label-name": _label("n\0\x1b[2J" * 50_000, "x", RUNS),
    "many-ports": _label("retinue.service-ports", ",".join(f"p{port}:tcp:{port}" for port in range(1024, 60_000))),
    "port-list": _label("retinue.service-ports", f"p:tcp:[{','.join(map(str, range(1, 5000)))}]"),
    "port-above": _label("retinue.service-ports", "p:http:65536"),
    "port-digits": _label("retinue.service-ports", "p:http:" + "9" * 4000),
    "port-twice": _label("retinue.service-ports", "p:http:8080,p:http:8081"),
    "port-nul": _label("retinue.service-ports", "p\0:http:8080"),
    "port-terminal": _label("retinue.service-ports", "\x1b]0;title\x07\x1b[31m:http:8080"),
    "port-not-utf8": _label("retinue.service-ports", f"{NOT_UTF8}:http:8080"),
    "slot-nul": _label(f"{THEIR_MINIMUM}\0x", "1"),
    "slot-not-utf8": _label(f"{THEIR_MINIMUM}{NOT_UTF8}", "1"),
    "slots-many": HostileImage(INVALID, {"Labels": {f"{THEIR_MINIMUM}slot{n}": "1" for n in range(20_000)}}),
    "slots-long": _label("retinue.min-slots", ",".join(f"s{n}=1" for n in range(50_000))),
    "minimum-exponent": _minimum("1e400"),
    "minimum-negative": _minimum("-1"),
    "minimum-nan": _minimum("nan"),
    "minimum-huge": _minimum("1" + "0" * 30),
    "minimum-large": _minimum("1000t", NEEDS_MORE),
    "shared-memory-huge": _label("retinue.shared-memory", "9" * 30 + "t"),
    "variables-many": _label("retinue.core-variables", ",".join(f"V{n}" for n in range(50_000))),
    "variables-wrong": _label("retinue.core-variables", "A=B,\0"),
    "user-long": HostileImage(INVALID, {"User": "u" * 10_240}),
    "user-number": HostileImage(INVALID, {"User": str(2**64)}),
    "user-negative": HostileImage(INVALID, {"User": "-1"}),
    "user-nul": HostileImage(INVALID, {"User": "a\0b\x1b[31m"}),
    "user-missing": HostileImage(INVALID, {"User": "nobody-of-that-name"}),
    "group-missing": HostileImage(INVALID, {"User": "1000:no-such-group"}),
    "command": HostileImage(RUNS, {"Entrypoint": ["\0", "x" * 300_000], "Cmd": [""], "Shell": ["\0"]}),
    "work-directory": HostileImage(RUNS, {"WorkingDir": "../../../proc/self/fd/../.."}),
    "variables-odd": HostileImage(RUNS, {"Env": ["NO_VALUE", "A=\x1b[31m", f"B={NOT_UTF8}"]}),
    "variable-nul": HostileImage(INVALID, {"Env": ["A=a\0b"]}),
    "variable-long": HostileImage(INVALID, {"Env": ["A=" + "x" * (1 << 18)]}),
    "environment-many": HostileImage(INVALID, {"Env": [f"V{n}=1" for n in range(50_000)]}),
    "volumes-many": HostileImage(INVALID, {"Volumes": {f"/v{n}": {} for n in range(2000)}}),
    "volume-root": HostileImage(INVALID, {"Volumes": {"/": {}}}),
    "volumes-over-ours": HostileImage(
        RUNS, {"Volumes": {"/run/kernel": {}, "/home": {}, "/home/work": {}, "/etc": {}}}
    ),
    "layers": HostileImage(RUNS, layers=LAYERS),
}


def load(engine: TestEngine, name: str, image: HostileImage) -> str:
    """Loads an image of the test image's files with this configuration, and returns its reference."""
    reference = f"retinue-test/hostile-{name}:1"
    client = engine.client()
    try:
        description = client.inspect_image(IMAGE)
        files = _layer_of(b"".join(client.get_image(IMAGE)))
        layers = [files, *(_layer(f"layer{number}") for number in range(1, image.layers))]
        client.load_image(_archive(reference, description["Architecture"], image.configuration, layers))
        # The engine may leave out an image without a word.
        client.inspect_image(reference)
    finally:
        client.close()
    return reference


def _layer_of(saved: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        layer = archive.extractfile(json.load(manifest)[0]["Layers"][0])
        assert layer is not None
        return layer.read()


def _layer(name: str) -> bytes:
    return _tar({name: b""})


def _archive(reference: str, architecture: str, configuration: Mapping[str, Any], layers: list[bytes]) -> bytes:
    content = {
        "architecture": architecture,
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
    return _tar(
        {
            "config.json": json.dumps(content).encode().replace(NOT_UTF8.encode(), b"\xff\xc0\xaf"),
            "manifest.json": json.dumps(manifest).encode(),
            **dict(zip(names, layers, strict=True)),
        }
    )


def _tar(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
