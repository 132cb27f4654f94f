"""The image of the demonstration: built from this machine's busybox and the texts; nothing is pulled."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from retinue.devtools import engine

REPOSITORY, TAG = "retinue-demo/words", "1"
IMAGE = f"{REPOSITORY}:{TAG}"
# Each kernel counts every third file; the subs hand their numbers to main1, by name.
PROGRAM = r"""
texts=$1 index=$BACKENDAI_CLUSTER_LOCAL_RANK size=$BACKENDAI_CLUSTER_SIZE
n=0 words=0
for text in "$texts"/*; do
    [ $((n % size)) = "$index" ] && words=$((words + $(wc -w <"$text")))
    n=$((n + 1))
done
if [ "$BACKENDAI_CLUSTER_ROLE" = sub ]; then
    # Asked until main1 has taken it.
    nc -l -p 7000 -e echo "$words"
    exit
fi
total=$words
echo "main1 counted $words"
for sub in $(echo "$BACKENDAI_CLUSTER_HOSTS" | tr , ' '); do
    [ "$sub" = main1 ] && continue
    until found=$(nc "$sub" 7000 </dev/null 2>/dev/null) && [ -n "$found" ]; do sleep 0.1; done
    echo "$sub counted $found"
    total=$((total + found))
done
echo "total $total"
"""


def find_engine() -> str | None:
    """Returns the engine of this machine as `unix://PATH`, if one answers and an image can be made; else None.
    Blocks.
    """
    host = os.environ.get("DOCKER_HOST", "") or engine.DEFAULT_HOST
    usable = host.startswith("unix://") and shutil.which("busybox") is not None and engine.answers(host)
    return host if usable else None


def make_image(host: str, texts: Path) -> bool:
    """Makes the image; whether that went well. Blocks."""
    content = io.BytesIO()
    busybox = Path(shutil.which("busybox") or "").resolve()
    names = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()  # noqa: S603
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(busybox, "bin/busybox")
        for name in sorted(set(names) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for text in sorted(texts.iterdir()):
            if not text.is_symlink():
                archive.add(text, str(text).lstrip("/"))
    return engine.load_image(host, content.getvalue(), REPOSITORY, TAG)
