"""The images of manager and agent: built by an engine from what a clone has, and a session in them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from docs.generator import ROOT
from retinue.devtools.cluster import free_ports
from tests.integration.agent.docker.engine import PROGRAMS, TestEngine, install


# Everything is fetched and compiled, as on a fresh machine.
@pytest.mark.timeout(3600)
def test_images_are_built_from_a_clone_and_run_sessions() -> None:
    install({**PROGRAMS, "debootstrap": "debootstrap"})
    engine = TestEngine()
    try:
        engine.start()
        ended = subprocess.run(
            [ROOT / "scripts/check-images"],
            env={**os.environ, "DOCKER_HOST": engine.host, "PORT": str(free_ports().users)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        engine.stop()
    sys.stdout.write(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.endswith("images: ok\n")
