"""Text files that users name: scripts, manifests, keys and variables, however their editors and shells write them."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    _TextType = click.ParamType[str]
else:
    # Earlier versions of click are not generic.
    _TextType = click.ParamType

# The longer mark begins as the shorter one does.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(content: bytes) -> str:
    """Returns a text with the line ends of Unix, without a byte order mark, which says how it is encoded: editors of
    Windows write one, and PowerShell writes UTF-16. Raises UnicodeDecodeError.
    """
    mark, encoding = next(((mark, name) for mark, name in _MARKS if content.startswith(mark)), (b"", "utf-8"))
    return content[len(mark) :].decode(encoding).replace("\r\n", "\n")


def read_file(file: str) -> tuple[str, str]:
    """Returns a file's name for errors, and its text; `-` is standard input. Raises UsageError."""
    try:
        if file == "-":
            return "standard input", decode(sys.stdin.buffer.read())
        return file, decode(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8") from error


class TextFile(_TextType):
    """A file, of which the command gets the text."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the text of a file by its name, `-` being standard input; usage errors for one that is none."""
        try:
            return read_file(value)[1]
        except UsageError as error:
            self.fail(str(error), param, ctx)
