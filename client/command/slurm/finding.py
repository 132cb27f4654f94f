"""Finds the sessions that ids of jobs, users and other options of Slurm's commands name."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.client.command.shell.selecting import selected, term
from retinue.client.command.slurm.job import ARRAY_LABEL, INDEX_LABEL, OFFSET_LABEL, Job, jobs_of
from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retinue.client.client import Client
    from retinue.manager.v1 import session_pb2

_ID = re.compile(r"(\d{1,18})(?:_(\*|\d{1,9}|\[([\d,\-]+)\](?:%\d+)?|[\d,\-]+))?(?:\.(\w+)|\+\d+)?")
_CALLS = 8
BATCH = "batch"
"""The step of a job that is its script; those that srun starts have numbers, and are known in its kernels only."""


@dataclass(frozen=True, slots=True)
class JobId:
    """A job, or of an array the indices that are meant; None for all of them, or for no array. `step` is one of its
    steps, as `batch` or `0`; empty: all of it.
    """

    number: int
    indices: frozenset[str] | None = None
    step: str = ""

    def __str__(self) -> str:
        """Returns it as it is written."""
        step = f".{self.step}" if self.step else ""
        return f"{self.number}{'' if self.indices is None else '_' + ','.join(sorted(self.indices))}{step}"

    def has(self, job: Job) -> bool:
        """Returns whether a job is meant, or is the one of a step that is."""
        if self.indices is not None:
            return job.array == self.number and job.index in self.indices
        return self.number in (job.number, job.array)


def parse_id(text: str) -> JobId | None:
    """Returns the job that `12`, `12_3`, `12_[1-3]` or a step of one, as `12.batch`, names; None for anything else."""
    found = _ID.fullmatch(text.strip())
    if found is None:
        return None
    number, indices, step = int(found[1]), found[2], found[4] or ""
    if indices is None or indices == "*":
        return JobId(number, step=step)
    listed = set[str]()
    for part in (found[3] or indices).split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return None
        listed.update(map(str, range(int(first), int(last or first) + 1)))
    return JobId(number, frozenset(listed), step)


def split_ids(values: Iterable[str]) -> list[str]:
    """Returns ids that are separated by commas, of which none within brackets counts."""
    return [part for value in values for part in re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", value)]


def split_words(values: Iterable[str]) -> list[str]:
    """Returns words that are separated by commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def is_local_user(name: str) -> bool:
    """Returns whether a name or number is that of the user of this machine who calls: `$USER` stands for the caller,
    whatever the account is called.
    """
    if name.isdecimal():
        return hasattr(os, "getuid") and int(name) == os.getuid()
    try:
        return name == getpass.getuser()
    except (KeyError, OSError):
        return False


async def user_names(client: Client, names: Sequence[str], *, mine: bool = False) -> list[str]:
    """Returns the accounts that names of users stand for, with `mine` the caller's too."""
    found = [name for name in names if not is_local_user(name)]
    if mine or len(found) < len(names):
        found.append((await client.users.caller()).name)
    return found


async def find(client: Client, wanted: JobId) -> list[session_pb2.Session]:
    """Returns the session of a number; of the first one of an array, or of indices, those of the array."""
    first = [
        session.view
        async for session in client.sessions.list(filter=term("number", str(wanted.number)), show_ended=True, limit=1)
    ]
    if not first:
        return []
    labels = first[0].spec.labels
    if labels.get(OFFSET_LABEL) != "0" or not (name := labels.get(ARRAY_LABEL)):
        return first if wanted.indices is None else []
    named = selected(term("owner", first[0].owner), [term(f"labels.{ARRAY_LABEL}", name)])
    return [
        session.view
        async for session in client.sessions.list(filter=named, show_ended=True)
        if Job(session.view, 0.0).array == wanted.number
        and (wanted.indices is None or session.view.spec.labels[INDEX_LABEL] in wanted.indices)
    ]


async def find_all(client: Client, ids: Iterable[JobId]) -> list[tuple[JobId, list[session_pb2.Session]]]:
    """Returns the sessions of each id."""
    some = asyncio.Semaphore(_CALLS)

    async def one(wanted: JobId) -> tuple[JobId, list[session_pb2.Session]]:
        async with some:
            return wanted, await find(client, wanted)

    return list(await asyncio.gather(*(one(wanted) for wanted in dict.fromkeys(ids))))


async def list_jobs(client: Client, *, show_ended: bool, owners: Sequence[str] | None, group: str = "") -> list[Job]:
    """Returns the sessions of some owners, None being all, as jobs, the oldest first."""
    terms = [term("resource_group", group)] if group else []
    queries = [terms] if owners is None else [[*terms, term("owner", owner)] for owner in dict.fromkeys(owners)]
    sessions = [
        session.view
        for query in queries
        async for session in client.sessions.list(filter=selected("", query), show_ended=show_ended)
    ]
    return jobs_of(sessions, time.time())


async def jobs_of_ids(client: Client, ids: Sequence[str]) -> tuple[list[Job], list[str]]:
    """Returns the jobs that ids name, the oldest first, and the ids that name none. Raises UsageError."""
    wanted = []
    for text in ids:
        if (parsed := parse_id(text)) is None:
            raise UsageError(f"Invalid job id: {text}")
        wanted.append(parsed)
    found = await find_all(client, wanted)
    sessions = {session.id: session for _, listed in found for session in listed}
    return jobs_of(sessions.values(), time.time()), [str(one) for one, listed in found if not listed]
