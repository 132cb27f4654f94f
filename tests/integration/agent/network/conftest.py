"""What the tests of networks need of the machine."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(autouse=True, scope="session")
def needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes network namespaces")
    for program in ("bridge", "ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")
