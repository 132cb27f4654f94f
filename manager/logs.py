"""Log lines: for people, or one JSON object each for machines."""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import json
import logging
import re
import sys

_log = logging.getLogger(__name__)

# Tasks without a name of their own are numbered.
_NUMBER = re.compile(r"-\d+$")
_GRPC = "grpc._cython.cygrpc"
_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(*, as_json: bool, level: str) -> None:
    """Sends all log lines to standard error; `level` is a name such as `INFO`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(_PLAIN))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # They tell of every step of theirs.
    for chatty in ("alembic", "asyncio", "sqlalchemy", "psycopg"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger(_GRPC).addFilter(is_no_lost_caller)


def is_no_lost_caller(record: logging.LogRecord) -> bool:
    """Returns False for what gRPC logs, with its traceback, of a caller that went away before its answer was sent."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message and, of an exception, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_tasks() -> None:
    """Logs how many tasks the running event loop has, and how many there are of each name."""
    tasks = asyncio.all_tasks()
    names = collections.Counter(_NUMBER.sub("", task.get_name()) for task in tasks)
    _log.info("tasks of the event loop: %d: %s", len(tasks), dict(names.most_common(20)))
