"""Writes the log of a daemon: lines of text for people, or one JSON object per line for machines."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import re
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

from retinue.rpc.version import describe_components, software_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_log = logging.getLogger(__name__)

# The id of the call that is served. A list, since tasks that outlive the call keep their copy of the variable:
# emptied at its end.
_served: ContextVar[list[str]] = ContextVar("served", default=[])  # noqa: B039  # never changed

# Tasks without a name of their own are numbered.
_NUMBER = re.compile(r"-\d+$")
_GRPC = "grpc._cython.cygrpc"
# They log every step at INFO or DEBUG.
_VERBOSE = ("alembic", "asyncio", "sqlalchemy", "psycopg")
FORMAT = "retinue.log_format"
"""Where the context of a command has the format, as soon as it is known."""
JSON = "json"


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options `--log-format` and `--log-level`, the arguments of `configure_logging`."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        show_default=True,
        help="Least severity of what is logged.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(["text", JSON]),
        default="text",
        show_default=True,
        # Before the others: what is wrong with those is said in this format.
        is_eager=True,
        callback=_note_format,
        help="Text for people, or one JSON object per line.",
    )
    return form(level(command))


def _note_format(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.meta[FORMAT] = value
    return value


def configure_logging(log_format: str, log_level: str) -> None:
    """Sends all log lines to standard error; `log_format` is `json` or `text`. Warnings of Python, and exceptions that
    nobody catches, become such lines, too.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    for verbose in _VERBOSE:
        logging.getLogger(verbose).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger(_GRPC).addFilter(is_not_lost_caller)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _log.info("interrupted")
    else:
        _log.critical("the program ends by an error of its own", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(raised: threading.ExceptHookArgs) -> None:
    name = "?" if raised.thread is None else raised.thread.name
    if raised.exc_value is not None and not issubclass(raised.exc_type, SystemExit):
        exc_info = (raised.exc_type, raised.exc_value, raised.exc_traceback)
        _log.error("thread %s ended by an error", name, exc_info=exc_info)


def _log_unraisable(raised: sys.UnraisableHookArgs) -> None:
    exc_info = None if raised.exc_value is None else (raised.exc_type, raised.exc_value, raised.exc_traceback)
    _log.error("%s: %r", raised.err_msg or "exception ignored in", raised.object, exc_info=exc_info)


def log_start(program: str, *packages: str) -> None:
    """Logs which build of a program starts, and the versions of what it is built on."""
    _log.info("%s %s starts, with %s", program, software_version(), describe_components(*packages))


def say(text: str, level: int = logging.INFO) -> None:
    """Writes a line for people, whatever severities are logged; where the log is for machines,
    the line is one of the log's.
    """
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        _log.log(level, "%s", text)
    else:
        click.echo(text, err=True)


class DaemonError(click.ClickException):
    """What ends a daemon, in one line."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Writes the line."""
        del file
        say(f"Error: {self.format_message()}", logging.ERROR)


class SettingsError(DaemonError):
    """What keeps a daemon from starting with the settings that it was given."""

    exit_code = click.UsageError.exit_code


@contextlib.contextmanager
def serving(request_id: str) -> Iterator[None]:
    """Has the lines that are logged until the end of the block, also by tasks started in it, carry the id of a call."""
    served = [request_id]
    _served.set(served)
    try:
        yield
    finally:
        served.clear()


def is_not_lost_caller(record: logging.LogRecord) -> bool:
    """Returns False for the traceback that gRPC logs when a caller disconnects before its response was sent."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; no text in it can break out of its line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns time, level, logger, message, the id of the call that is served and, for an exception,
        its traceback.
        """
        values = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for request in _served.get():
            values["request_id"] = request
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


class TextFormatter(logging.Formatter):
    """Formats a record as one line, with the lines of an exception indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text, with control characters of the message as escapes; times are in UTC."""
        time = _time(record).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{time} {record.levelname.lower():7} {record.name}: {_printable(_message(record))}"
        for request in _served.get():
            line += f", request {request}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            line = "\n    ".join([line, *map(_printable, lines)])
        return line


def log_tasks() -> None:
    """Logs how many tasks the running event loop has, in all and by name."""
    tasks = asyncio.all_tasks()
    names = collections.Counter(_NUMBER.sub("", task.get_name()) for task in tasks)
    _log.info("tasks of the event loop: %d: %s", len(tasks), dict(names.most_common(20)))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  # a line that is half told is better than none
        return f"{record.msg} {record.args!r} ({error!r})"


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
