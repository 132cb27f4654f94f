"""Asks the Prometheus server of the manager's settings for the metrics of endpoints that are queries.
No other address is ever dialled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, encode_basic_auth
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_log = logging.getLogger(__name__)

# Seconds between two answers to a query, for one answer, and for which it is good.
_INTERVAL, _TIMEOUT, _FRESH = 2.0, 3.0, 8.0
_PARALLEL = 8
_MAX_ANSWER = 1 << 20


class QueryError(Exception):
    """The server did not answer with a number."""


class QueryReader:
    """The newest answers to the queries that are watched. Belongs on one event loop."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`url` is the base of the server's API, with a name and a password in it where it wants them;
        `clock` is monotonic, in seconds.
        """
        base = URL(url)
        self._url = base.with_user(None) / "api/v1/query"
        self._headers = {"Authorization": encode_basic_auth(base.user, base.password or "")} if base.user else {}
        self._clock = clock
        self._queries: Collection[str] = ()
        self._answers: dict[str, tuple[float, float]] = {}
        self._troubles: dict[str, str] = {}
        self._changed = asyncio.Event()

    def watch(self, queries: Collection[str]) -> None:
        """Asks these queries from now on, and no others."""
        if queries == self._queries:
            return
        self._queries = queries
        self._answers = {query: answer for query, answer in self._answers.items() if query in queries}
        self._changed.set()

    def value(self, query: str) -> float | None:
        """Returns the sum of a query's result; None while it is not known."""
        heard, value = self._answers.get(query, (-math.inf, 0.0))
        return value if self._clock() - heard <= _FRESH else None

    async def run(self) -> None:
        """Asks until cancelled."""
        slots = asyncio.Semaphore(_PARALLEL)
        async with ClientSession(
            cookie_jar=DummyCookieJar(), timeout=ClientTimeout(total=_TIMEOUT), trust_env=False, headers=self._headers
        ) as session:
            while True:
                self._changed.clear()
                began = self._clock()
                await asyncio.gather(*(self._ask(session, slots, query) for query in self._queries))
                pause = max(0.0, _INTERVAL - (self._clock() - began)) if self._queries else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()

    async def _ask(self, session: ClientSession, slots: asyncio.Semaphore, query: str) -> None:
        async with slots:
            try:
                async with session.post(self._url, data={"query": query}, allow_redirects=False) as response:
                    body = await response.content.read(_MAX_ANSWER + 1)
                    while len(body) <= _MAX_ANSWER and (piece := await response.content.read(_MAX_ANSWER)):
                        body += piece
                if len(body) > _MAX_ANSWER:
                    raise QueryError(f"it answers more than {_MAX_ANSWER} bytes")
                value = read_answer(body)
            except (ClientError, OSError, TimeoutError, QueryError) as error:
                self._note(query, repr(error))
                return
        self._note(query, "")
        if query in self._queries:
            self._answers[query] = (self._clock(), value)

    def _note(self, query: str, trouble: str) -> None:
        """Logs what is wrong with a query when it becomes so."""
        if trouble and self._troubles.get(query) != trouble:
            _log.warning("the Prometheus server does not answer the query %r: %s", query, trouble)
        self._troubles = {key: text for key, text in self._troubles.items() if key in self._queries} | {query: trouble}


def read_answer(body: bytes) -> float:
    """Returns the sum of the values that an answer has. Raises QueryError for one without any,
    and for anything else.
    """
    try:
        answer: Any = json.loads(body)
        data = answer["data"]
        results = [data["result"]] if data["resultType"] == "scalar" else [item["value"] for item in data["result"]]
        values = [float(value) for _, value in results]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise QueryError("it is not the answer to an instant query") from None
    if not values or not math.isfinite(total := sum(values)):
        raise QueryError("it has no number")
    return total
