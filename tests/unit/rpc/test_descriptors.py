"""A daemon takes all descriptors that it may have."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_daemon_takes_all_descriptors_that_it_may_have() -> None:
    code = "from retinue.rpc.descriptors import raise_limit, soft_limit; raise_limit(); print(soft_limit())"
    command = ["/bin/sh", "-c", 'ulimit -Sn 128; ulimit -Hn 512; exec "$@"', "sh", sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "512"
