"""How the agent writes its own log: lines of text for people, or one JSON object per line for programs."""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import re
from datetime import UTC, datetime

_log = logging.getLogger(__name__)

# Tasks without a name of their own are numbered.
_NUMBER = re.compile(r"-\d+$")
_GRPC = "grpc._cython.cygrpc"


class JsonFormatter(logging.Formatter):
    """One JSON object per record; whatever a text holds, it cannot break out of its line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line per record, and the lines of an exception indented beneath it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text; control characters in a message are shown as escapes."""
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in record.getMessage())
        line = f"{moment} {record.levelname.lower():7} {record.name}: {message}"
        if record.exc_info:
            line += "\n    " + self.formatException(record.exc_info).replace("\n", "\n    ")
        return line


def set_up(form: str, level: str) -> None:
    """Sends all logs to standard error; `form` is `json` or `text`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(_GRPC).addFilter(is_no_lost_caller)


def is_no_lost_caller(record: logging.LogRecord) -> bool:
    """Returns False for what gRPC logs, with its traceback, of a caller that went away before its answer was sent."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"


def log_tasks() -> None:
    """Logs how many tasks the running event loop has, and how many there are of each name."""
    tasks = asyncio.all_tasks()
    names = collections.Counter(_NUMBER.sub("", task.get_name()) for task in tasks)
    _log.info("tasks of the event loop: %d: %s", len(tasks), dict(names.most_common(20)))
