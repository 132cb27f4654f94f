"""`python -m docs.generator` writes the generated pages; a test compares them with what is committed."""

from __future__ import annotations

import sys

from docs.generator import ROOT, write

if __name__ == "__main__":
    for path in write(ROOT):
        sys.stdout.write(f"{path}\n")
