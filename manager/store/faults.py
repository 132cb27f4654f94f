"""What a database refuses, in the driver's words, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
import sqlalchemy.exc

# What is the matter, for users, and what to do, which the server does not say; states of
# https://www.postgresql.org/docs/current/errcodes-appendix.html.
_KNOWN = {
    "28000": ("it does not let the manager in", "check the user in the database URL, and pg_hba.conf"),
    "28P01": ("it does not let the manager in", "check user and password in the database URL"),
    "3D000": (
        "it is not there",
        "check the name in the database URL, or CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    ),
    "3F000": ("its schema is missing", "create the schema, or name another one in search_path"),
    "42501": (
        "the manager lacks rights in it",
        "GRANT USAGE, CREATE ON SCHEMA public TO the manager's role, or make it the owner of the database",
    ),
    "53100": ("its disk is full", "make space on the disk of the database"),
    "53200": ("it has no memory left", "give the database's machine more memory, or PostgreSQL less to do"),
    "53300": ("it has no connections left", "raise max_connections, or the limit of the manager's role"),
    "25006": (
        "it takes no changes",
        "give the primary as host, or several hosts with target_session_attrs=read-write",
    ),
    "58030": ("its disk fails", "look at the disk of the database"),
    "XX001": ("it is damaged", "restore a backup"),
    "XX002": ("it is damaged", "REINDEX the index"),
}
# libpq tells no state of a server that refuses a connection, and its words are in the server's language.
_REFUSED = (
    (re.compile(r"password authentication failed|no password supplied"), "28P01"),
    (re.compile(r"no pg_hba\.conf entry|Peer authentication failed|role \".*\" does not exist"), "28000"),
    (re.compile(r"database \".*\" does not exist"), "3D000"),
    (re.compile(r"too many (?:clients|connections)|remaining connection slots"), "53300"),
    (re.compile(r"session is (?:not read-write|read-only)"), "25006"),
)
# Goes away by itself: connection, transactions that an operator or a timeout has ended, and a server that starts.
_PASSING = re.compile(r"08.*|57P0[1235]|57014")
# Resources, operator, system.
_OF_DATABASE = ("53", "57", "58")
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Fault:
    """One refusal: its SQLSTATE, empty where there is none, and the words of the server or the driver."""

    state: str
    words: str

    @property
    def passes(self) -> bool:
        """Whether it may go away although nobody does anything."""
        return not self.state or _PASSING.fullmatch(self.state) is not None

    @property
    def is_known(self) -> bool:
        """Whether it says something about the database, and not about the statement."""
        return self.passes or self.state in _KNOWN or self.state[:2] in _OF_DATABASE

    @property
    def summary(self) -> str:
        """Returns what is the matter with the database, for those who have nothing to do with it."""
        return _KNOWN[self.state][0] if self.state in _KNOWN else "it refuses its work"

    @property
    def advice(self) -> str:
        """Returns what to do; empty where the words say it all."""
        return _KNOWN[self.state][1] if self.state in _KNOWN else ""

    def __str__(self) -> str:
        """Returns the words, and what to do."""
        return f"{self.words}: {self.advice}" if self.advice else self.words


def fault_of(error: BaseException) -> Fault | None:
    """Returns the fault that an error of the driver or of SQLAlchemy stands for; None for all others."""
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return None
    words = cause.diag.message_primary or str(cause)
    state = cause.sqlstate or next((state for said, state in _REFUSED if said.search(words)), "")
    return Fault(state, " ".join(words.split())[:_LONGEST].rstrip())
