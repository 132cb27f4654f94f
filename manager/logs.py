"""Log lines: for people, or one JSON object each for machines."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

_PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(*, as_json: bool, level: str) -> None:
    """Sends all log lines to standard error; `level` is a name such as `INFO`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(_PLAIN))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # They tell of every step of theirs.
    for chatty in ("alembic", "asyncio", "sqlalchemy", "psycopg"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


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
