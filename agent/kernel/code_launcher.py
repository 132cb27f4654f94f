"""Runs inside a kernel, by the Python that is put there: finds the Jupyter kernel of a language, and starts it to stay.

It reads one JSON object from its input and prints one. With `language` and `key` it starts a Jupyter kernel, whose
sockets lie in a directory of its own under /tmp, and prints `directory`, `pid`, `by_message` (whether it is interrupted
by a message) or `error` and `installed`. With `signal` and `pid` it sends a signal.
It is a program by itself, and uses nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# A virtual machine without KVM takes most of a minute for it, on a busy node.
READY_SECONDS = 180.0
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
PYTHON_NAMES = ("python", "python3", "")
LOG_BYTES = 2000
# The work directory comes to the search path by IPython, behind Python's own modules: a file there may have the name of
# one that `-m ipykernel_launcher` imports.
JUPYTER_KERNEL = "import sys; del sys.path[0]; from ipykernel import kernelapp; kernelapp.launch_new_instance()"


def directories() -> list[Path]:
    """Where Jupyter kernels are looked for, as Jupyter does, and beside the interpreters of the search path."""
    home = os.environ.get("HOME", "/")
    data = [Path(path) for path in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if path]
    data.append(Path(os.environ.get("JUPYTER_DATA_DIR") or f"{home}/.local/share/jupyter"))
    searched = [Path(path) for path in os.environ.get("PATH", "").split(os.pathsep)]
    beside = [path for path in searched if any((path / name).exists() for name in ("python3", "jupyter"))]
    data += [path.parent / "share/jupyter" for path in beside]
    data += [Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter")]
    return [path / "kernels" for path in data]


def installed() -> dict[str, dict[str, Any]]:
    """Jupyter kernels by name; the first of a name counts."""
    found: dict[str, dict[str, Any]] = {}
    for directory in directories():
        try:
            files = sorted(directory.glob("*/kernel.json"))
        except OSError:
            continue
        for file in files:
            try:
                spec = json.loads(file.read_text())
            except (OSError, ValueError):
                continue
            if isinstance(spec, dict) and isinstance(spec.get("argv"), list) and spec["argv"]:
                spec["resource_dir"] = str(file.parent)
                found.setdefault(file.parent.name.lower(), spec)
    return found


def choose(language: str) -> dict[str, Any] | None:
    """The Jupyter kernel of a language, by its own name or that of the language; for Python there always is one."""
    specs, wanted = installed(), language.lower()
    if wanted in PYTHON_NAMES:
        for name in ("python3", "python"):
            if name in specs:
                return specs[name]
        words = ["-c", JUPYTER_KERNEL, "-f", "{connection_file}"]
        # Names are looked up where they live; reading all sources for them takes seconds at first.
        words += ["--IPCompleter.use_jedi=False", "--IPKernelApp.outstream_class=retinue_code_output.Output"]
        return {"argv": [sys.executable, *words], "interrupt_mode": "message"}
    if wanted in specs:
        return specs[wanted]
    return next((spec for spec in specs.values() if str(spec.get("language", "")).lower() == wanted), None)


def interpreter(word: str, resource_dir: str) -> str:
    """The program that a Jupyter kernel begins with: `python` is that of the environment it was installed in,
    as for Jupyter.
    """
    # PREFIX/share/jupyter/kernels/NAME
    parents = Path(resource_dir).parents
    beside = parents[3] / "bin" / word if len(parents) > 3 else Path(word)  # noqa: PLR2004  # as above
    return str(beside) if word in {"python", "python3"} and os.access(beside, os.X_OK) else word


def start(language: str, key: str) -> dict[str, Any]:
    """Starts it, and returns once its sockets are there."""
    spec = choose(language)
    if spec is None:
        return {"error": "missing", "installed": sorted({"python", *installed()})}
    directory = Path(tempfile.mkdtemp(prefix=".retinue-code-", dir="/tmp"))
    connection = directory / "connection.json"
    # Its name is that of the sockets too, up to a dash and a number.
    facts = {"transport": "ipc", "ip": str(directory / "s"), "key": key, "signature_scheme": "hmac-sha256", **PORTS}
    descriptor = os.open(connection, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(facts, file)
    argv = [
        str(word).replace("{connection_file}", str(connection)).replace("{resource_dir}", spec.get("resource_dir", ""))
        for word in spec["argv"]
    ]
    argv[0] = interpreter(argv[0], spec.get("resource_dir", ""))
    environment = {**os.environ, **{str(name): str(value) for name, value in (spec.get("env") or {}).items()}}
    log = directory / "log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        except OSError as error:
            return {"error": f"{argv[0]}: {error.strerror}"}
    deadline = time.monotonic() + READY_SECONDS
    sockets = [directory / f"s-{number}" for number in PORTS.values()]
    while not all(socket.exists() for socket in sockets):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
            return {"error": f"the Jupyter kernel did not start: {said}"}
        time.sleep(0.01)
    by_message = spec.get("interrupt_mode") == "message" or "ipykernel_launcher" in argv
    return {"directory": directory.name, "pid": process.pid, "by_message": by_message}


def send(number: int, pid: int) -> dict[str, Any]:
    """Sends a signal to a Jupyter kernel; to end it, with all that it has started in its process group."""
    try:
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except OSError as error:
        return {"error": str(error.strerror)}
    return {}


if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    signalling = "signal" in request
    answer = send(request["signal"], request["pid"]) if signalling else start(request["language"], request["key"])
    sys.stdout.write(json.dumps(answer))
