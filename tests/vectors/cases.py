"""Vectors as they are read from files, and what checks each kind of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.databases import Postgres, fresh_database
from tests.vectors import (
    device_vectors,
    idle_vectors,
    placement_vectors,
    policy_vectors,
    port_vectors,
    rollout_vectors,
    scaling_vectors,
    share_vectors,
    store_vectors,
)
from tests.vectors.exceptions import EXCEPTIONS, HERE, Vector, kind_of
from tests.vectors.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNNERS = {
    **device_vectors.RUNNERS,
    **idle_vectors.RUNNERS,
    **share_vectors.RUNNERS,
    **placement_vectors.RUNNERS,
    **policy_vectors.RUNNERS,
    **scaling_vectors.RUNNERS,
    **port_vectors.RUNNERS,
    **rollout_vectors.RUNNERS,
}
# More cases of the same kinds, worked out by hand from the rules: nothing at all, just enough, a hair too much, ties,
# who is gone.
EDGES = HERE / "edges"
# Those that need a database.
STORE_RUNNERS = store_vectors.RUNNERS


def read_vectors(directory: Path) -> Iterator[Vector]:
    """All vectors of the files in a directory. Raises ValueError when there are none,
    or a file holds something else.
    """
    paths = [path for path in sorted(directory.glob("*.json")) if path.name != "exceptions.json"]
    if not paths:
        raise ValueError(f"there are no vectors in {directory}")
    for path in paths:
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        vectors = content if isinstance(content, list) else content.get("vectors")
        if not vectors or not all(isinstance(vector, dict) for vector in vectors):
            raise ValueError(
                f"{path} holds no vectors: it must be a list of objects, or an object with such a list as `vectors`"
            )
        for number, vector in enumerate(vectors):
            yield {"id": f"{path.stem}-{number}", **vector}


def check(vector: Vector) -> None:
    """Fails unless all that a vector expects is so, and all of it was looked at."""
    kind = kind_of(vector)
    assert kind in RUNNERS, (
        f"nothing runs vectors of kind {kind!r}; known are: {', '.join(sorted({*RUNNERS, *STORE_RUNNERS}))}"
    )
    record = Record(vector)
    RUNNERS[kind](record)
    assert_all_read(record)


async def check_of_store(vector: Vector, postgres: Postgres) -> None:
    """The same of a vector that needs a database."""
    record = Record(vector)
    async with fresh_database(postgres) as url:
        await STORE_RUNNERS[kind_of(vector)](record, url)
    assert_all_read(record)


def assert_all_read(vector: Record) -> None:
    """Fails for a vector with a key, at any depth, that nothing looks at:
    what it asks for or expects would be left out.
    """
    # What is left out on purpose, and comments for readers.
    unread = sorted(vector.unread({*EXCEPTIONS["comments"], *EXCEPTIONS["expected"]}))
    assert not unread, f"nothing looks at {', '.join(unread)}"
