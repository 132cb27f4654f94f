"""What a database refuses, in the driver's words, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
import sqlalchemy.exc

_LONGEST = 500
_LOOK_AT_SERVER = "look at the log of PostgreSQL"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of fault means: for those who have nothing to do with the database, and for its administrator."""

    summary: str
    """What is the matter with the database."""
    advice: str
    """What to do, which neither server nor driver says."""
    passes: bool = False
    """Whether it may go away although nobody does anything."""
    stops: bool = False
    """Whether nothing that changes something can be done while it lasts: a manager is not ready then."""


_UNREACHABLE = Meaning("it cannot be reached", "start it, or check host and port in the database URL", True)
_NOT_LET_IN = Meaning(
    "it does not let the manager in", "check user and password in the database URL, and pg_hba.conf", stops=True
)
_NOT_TRUSTED = Meaning(
    "its certificate is not trusted",
    "give the CA of the server as sslrootcert=FILE, and as host a name that is in the certificate of the server",
    stops=True,
)
_NO_TLS = Meaning(
    "it speaks without TLS", "set ssl = on in postgresql.conf, or give another sslmode in the database URL", stops=True
)
_BAD_URL = Meaning("its URL is wrong", "correct the database URL", stops=True)
_MISSING = Meaning(
    "it is not there",
    "check the name in the database URL, or CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0",
    stops=True,
)
_NO_CONNECTIONS = Meaning(
    "it has no connections left",
    "raise max_connections, or the CONNECTION LIMIT of the role or of the database",
    stops=True,
)
_READ_ONLY = Meaning(
    "it takes no changes",
    "give the primary as host, or several hosts with target_session_attrs=read-write; check default_transaction_read_only",
    stops=True,
)
_POOLED = Meaning(
    "its pooler shares sessions",
    "set pool_mode = session for this database in the pooler, or connect to the server itself",
)
_POOLER_FULL = Meaning(
    "its pooler has no connections left",
    "raise default_pool_size, max_client_conn or max_db_connections in the pooler",
    stops=True,
)
_POOLER_CUT_OFF = Meaning("its pooler does not reach it", "look at the log of the pooler, and start the server", True)
_DAMAGED = Meaning("it is damaged", "restore a backup")
_TOO_SLOW = Meaning("it did not answer in time", "look for locks and for load on the database", True)
_SERVER_STOPS = Meaning("it starts or stops", "wait, or start it", True)

STATES = {
    "08": Meaning("the connection to it broke", "check the network to it, and that it runs", True),
    "08P01": Meaning("it speaks otherwise than expected", "check what listens at host and port of the database URL"),
    "25006": _READ_ONLY,
    "25P03": _TOO_SLOW,
    "25P04": _TOO_SLOW,
    "26000": _POOLED,
    "28": _NOT_LET_IN,
    "3D000": _MISSING,
    "3F000": Meaning(
        "its schema is missing",
        "create the schema, or name another one in search_path of the URL or the role",
        stops=True,
    ),
    "42501": Meaning(
        "the manager lacks rights in it",
        "GRANT USAGE, CREATE ON SCHEMA public TO the manager's role, or make it the owner of the database and its tables",
    ),
    "42P01": Meaning("tables are missing in it", "check search_path of the URL and the role, or restore a backup"),
    "42P05": _POOLED,
    "53": Meaning("it has no resources left", _LOOK_AT_SERVER, stops=True),
    "53100": Meaning("its disk is full", "make space on the disk of the database", stops=True),
    "53200": Meaning(
        "it has no memory left",
        "give the database's machine more memory, or PostgreSQL less to do; for locks, raise max_locks_per_transaction",
    ),
    "53300": _NO_CONNECTIONS,
    "53400": Meaning("it has reached a limit", "raise the limit that it names, such as temp_file_limit"),
    "54000": Meaning(
        "it has reached a limit", "do what it hints at; for transaction ids, VACUUM the whole server", stops=True
    ),
    "55000": Meaning("it does not take connections", "ALTER DATABASE name ALLOW_CONNECTIONS true", stops=True),
    "57014": _TOO_SLOW,
    "57P01": _SERVER_STOPS,
    "57P02": _SERVER_STOPS,
    "57P03": _SERVER_STOPS,
    "57P04": Meaning("it was dropped", "create it again, and restore a backup", stops=True),
    "57P05": Meaning("the connection to it was idle for too long", "set idle_session_timeout = 0 for the role", True),
    "58": Meaning("its disk fails", "look at the disk of the database, and at the log of PostgreSQL", stops=True),
    "F0": Meaning("its configuration is wrong", _LOOK_AT_SERVER, stops=True),
    "XX": Meaning("it has an error inside", _LOOK_AT_SERVER),
    "XX001": _DAMAGED,
    "XX002": Meaning("it is damaged", "REINDEX the index"),
}
"""Meanings of states, and of classes of them, by
https://www.postgresql.org/docs/current/errcodes-appendix.html.
"""

# libpq tells no state of a connection that did not come about. The server's own words are in its language; the
# first that matches counts.
WORDS = (
    (
        re.compile(r"password authentication failed|no password supplied|SASL authentication failed|wrong password"),
        "28P01",
    ),
    (
        re.compile(
            r"no pg_hba\.conf entry|pg_hba\.conf rejects|(?:Peer|Ident|Cert\w*|LDAP|PAM|GSSAPI) authentication failed"
        ),
        "28000",
    ),
    (
        re.compile(r"role \".*\" (?:does not exist|is not permitted to log in)|no such user|valid client certificate"),
        "28000",
    ),
    (re.compile(r"(?:authentication method requirement|channel binding) .*(?:failed|required)|\.pgpass"), "28000"),
    (
        re.compile(r"permission denied for database"),
        Meaning("it does not let the manager in", "GRANT CONNECT ON DATABASE name TO the manager's role", stops=True),
    ),
    (re.compile(r"database \".*\" does not exist|no such database"), "3D000"),
    (re.compile(r"not currently accepting connections"), "55000"),
    (
        re.compile(
            r"default_pool_size|no more connections allowed|query_wait_timeout|no answer within \d+ s after the login"
        ),
        _POOLER_FULL,
    ),
    (re.compile(r"too many (?:clients|connections)|remaining connection slots"), "53300"),
    (re.compile(r"transaction blocks not allowed in statement pooling"), _POOLED),
    (
        re.compile(r"pgbouncer cannot connect to server|server login has been failing|server login failed"),
        _POOLER_CUT_OFF,
    ),
    (
        re.compile(r"unsupported startup parameter"),
        Meaning(
            "its pooler refuses a setting",
            "take it out of the database URL and set it by ALTER ROLE name SET, or name it in ignore_startup_parameters of the pooler",
            stops=True,
        ),
    ),
    (re.compile(r"session is (?:not read-write|read-only)|server is in hot standby mode"), "25006"),
    (
        re.compile(r"session is not read-only|server is not in hot standby mode"),
        Meaning("it is no standby", "set target_session_attrs=read-write in the database URL", stops=True),
    ),
    (
        re.compile(r"Hot standby mode is disabled"),
        Meaning("it is a standby without reading", "give the primary as host", stops=True),
    ),
    (re.compile(r"the database system is|terminating connection"), "57P03"),
    (
        re.compile(r"root certificate file \".*\" does not exist"),
        Meaning(
            "its certificate is not trusted",
            "give the CA of the server as sslrootcert=FILE, or sslrootcert=system",
            stops=True,
        ),
    ),
    (re.compile(r"does not support SSL|does not match sslmode"), _NO_TLS),
    (
        re.compile(
            r"alert (?!protocol|handshake)|could not (?:read|load|open) (?:certificate|private key)|private key file"
        ),
        Meaning(
            "it refuses the manager's certificate",
            "check sslcert and sslkey in the database URL: a certificate of a CA that the server knows, for the user, and its key, chmod 600",
            stops=True,
        ),
    ),
    (re.compile(r"certificate verify failed|does not match host name|server certificate"), _NOT_TRUSTED),
    (
        re.compile(
            r"invalid response to SSL negotiation|expected authentication request|wrong version number"
            r"|unsupported protocol|alert (?:protocol|handshake)"
        ),
        Meaning(
            "something else listens there",
            "check host and port in the database URL, and the versions of TLS on both sides",
            stops=True,
        ),
    ),
    (
        re.compile(
            r"failed to resolve host|could not translate host name|Name or service not known|Temporary failure in name"
        ),
        Meaning("its name is not found", "check the host in the database URL, and the name service", True),
    ),
    (
        re.compile(r"Permission denied"),
        Meaning("its socket is out of reach", "let the manager's user into the directory of the socket", stops=True),
    ),
    (
        re.compile(
            r"(?:invalid|unsupported|weak) (?:\w+ )?(?:connection option|value|port|integer)|invalid \w+ value|weak sslmode"
        ),
        _BAD_URL,
    ),
    (
        re.compile(r"timeout expired|timed out|No route to host|Network is unreachable|timeout"),
        Meaning("it does not answer", "check host and port in the database URL, and firewalls between", True),
    ),
    (re.compile(r"Connection refused|No such file or directory|connection failed|server closed"), _UNREACHABLE),
)
"""Words of the driver, of poolers and of servers where there is no state: which state they stand for, or what they
mean.
"""
_SAYS_NO = re.compile(r"\b(?:FATAL|ERROR):")
_UNKNOWN_REFUSAL = Meaning("it refuses its work", _LOOK_AT_SERVER, stops=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One refusal: its SQLSTATE, empty where there is none, and the words of the server or the driver."""

    state: str
    words: str
    meaning: Meaning | None = None
    """None for what says something about a statement, and not about the database."""

    @property
    def passes(self) -> bool:
        """Whether it may go away although nobody does anything."""
        return self.meaning is not None and self.meaning.passes

    @property
    def is_known(self) -> bool:
        """Whether it says something about the database, and not about the statement."""
        return self.meaning is not None

    @property
    def summary(self) -> str:
        """Returns what is the matter with the database, for those who have nothing to do with it."""
        return _UNKNOWN_REFUSAL.summary if self.meaning is None else self.meaning.summary

    @property
    def advice(self) -> str:
        """Returns what to do; empty where nothing is known."""
        return "" if self.meaning is None else self.meaning.advice

    def __str__(self) -> str:
        """Returns the words, and what to do."""
        return f"{self.words}: {self.advice}" if self.advice else self.words


def fault_of(error: BaseException) -> Fault | None:
    """Returns the fault that an error of the driver or of SQLAlchemy stands for; None for all others."""
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return None
    words = cause.diag.message_primary or str(cause)
    state, meaning = cause.sqlstate or "", None
    if not state or state == "08P01":
        state, meaning = _meaning_of_words(words, state)
    if meaning is None and state:
        meaning = STATES.get(state, STATES.get(state[:2]))
    return Fault(state, _shortened(" ".join(words.split())), meaning)


def _meaning_of_words(words: str, state: str) -> tuple[str, Meaning | None]:
    for pattern, found in WORDS:
        if pattern.search(words):
            return (found, None) if isinstance(found, str) else (state, found)
    if state:
        return state, None
    # A server that answers, in words of its own language.
    return "", _UNKNOWN_REFUSAL if _SAYS_NO.search(words) else _UNREACHABLE


def _shortened(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST].rstrip()} …"
