"""Runs inside every kernel of the word count: `python3 -c SOURCE DIRECTORY`; needs nothing but Python.

Each kernel counts the words of its part of the texts in the directory. The subs serve their count over TCP; main asks
them by name, prints the counts that it received, and the total.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

_PORT = 5000
_SECONDS = 60.0


def count(directory: Path, part: int, parts: int) -> dict[str, object]:
    """Words in every `parts`-th text, from number `part` on; links to texts are left out."""
    texts = sorted(path for path in directory.iterdir() if not path.is_symlink())[part::parts]
    words = sum(len(path.read_text(encoding="utf-8", errors="replace").split()) for path in texts)
    return {"host": socket.gethostname(), "address": "itself", "texts": len(texts), "words": words}


def serve(found: dict[str, object]) -> None:
    """Sends the count to every client that connects, until the session ends."""
    with socket.create_server(("", _PORT)) as server:
        while True:
            peer, _ = server.accept()
            with peer:
                peer.sendall(json.dumps(found).encode() + b"\n")


def ask(name: str) -> dict[str, object]:
    """Returns the count of the peer of that name; retries while its program does not listen yet."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            with socket.create_connection((name, _PORT), timeout=5) as peer, peer.makefile() as answer:
                return {**json.loads(answer.readline()), "address": peer.getpeername()[0]}
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Plays the role that the environment gives."""
    hosts = os.environ["BACKENDAI_CLUSTER_HOSTS"].split(",")
    own = count(Path(sys.argv[1]), int(os.environ["BACKENDAI_CLUSTER_LOCAL_RANK"]), len(hosts))
    if os.environ["BACKENDAI_CLUSTER_ROLE"] == "sub":
        serve(own)
        return
    everything = [own, *(ask(name) for name in hosts if name != own["host"])]
    for found in everything:
        sys.stdout.write("{host} at {address}: {words} words in {texts} texts\n".format(**found))
    sys.stdout.write(f"total {sum(int(str(found['words'])) for found in everything)}\n")


if __name__ == "__main__":
    main()
