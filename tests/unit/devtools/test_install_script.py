"""`scripts/install` installs by uv, with the settings that pip has; where uv does not do, by pip."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from docs.generator import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# It says what it was told; to `pip config list` it answers with the settings of a test.
_PYTHON = """#!/bin/sh
case "$*" in
"-m pip config list") cat "$SETTINGS" ;;
"-m pip "*) echo "pip $*" >>"$CALLS" ;;
*) cat >/dev/null ;;
esac
"""
_UV = """#!/bin/sh
echo "uv ${UV_DEFAULT_INDEX-} ${UV_INDEX-} ${UV_FIND_LINKS-} ${SSL_CERT_FILE-} ${UV_HTTP_TIMEOUT-}" >>"$CALLS"
exit "$UV_ENDS"
"""


def calls(tmp_path: Path, settings: str, *, uv_ends: int = 0) -> list[str]:
    """Returns what an installation calls, without what looks for pip."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"python": _PYTHON, "uv": _UV}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "settings").write_text(settings)
    (tmp_path / "calls").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "SSL_"))}
    subprocess.run(
        [ROOT / "scripts/install", "python", tmp_path / "venv", "manager"],
        env={**kept, "SETTINGS": str(tmp_path / "settings"), "CALLS": str(tmp_path / "calls"), "UV_ENDS": str(uv_ends)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    lines = (tmp_path / "calls").read_text().splitlines()
    return [" ".join(line.split()) for line in lines if not line.endswith("--version")]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("", "uv"),
        ("global.index-url='https://index.example/simple'\n", "uv https://index.example/simple"),
        # Variables count before files, and what is for `install` before the rest.
        (":env:.index-url='https://a.example'\nglobal.index-url='https://b.example'\n", "uv https://a.example"),
        ("global.index-url='https://b.example'\ninstall.index-url='https://c.example'\n", "uv https://c.example"),
        ("global.extra-index-url='https://a.example\\nhttps://b.example'\n", "uv https://a.example https://b.example"),
        ("global.find-links='/nowhere\\n/usr\\nhttps://a.example'\n", "uv /usr,https://a.example"),
        (":env:.cert='/site.pem'\n:env:.default-timeout='180'\n", "uv /site.pem 180"),
        ("freeze.all='true'\n", "uv"),
    ],
)
def test_uv_is_told_the_settings_of_pip(tmp_path: Path, settings: str, told: str) -> None:
    assert calls(tmp_path, settings) == [told]


@pytest.mark.parametrize("settings", ["global.no-index='true'\n", ":env:.constraint='/site.txt'\n"])
def test_pip_installs_where_uv_has_nothing_for_a_setting(tmp_path: Path, settings: str) -> None:
    (call,) = calls(tmp_path, settings)
    assert call.startswith("pip -m pip install")


def test_pip_installs_where_uv_fails(tmp_path: Path) -> None:
    first, second = calls(tmp_path, "", uv_ends=1)
    assert first == "uv"
    assert second.startswith("pip -m pip install")
