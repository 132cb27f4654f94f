"""URLs of databases, as the documents of PostgreSQL and SQLAlchemy write them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from retinue.manager.store.postgres.connections import hosts_of, parse_url


def parameters(url: str) -> dict[str, Any]:
    """Returns what the driver is given."""
    _, found = PGDialect_psycopg().create_connect_args(parse_url(url))  # type: ignore[no-untyped-call]
    return dict(found)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://", {}),
        ("postgresql://localhost/mydb", {"host": "localhost", "dbname": "mydb"}),
        ("postgres://u:s@h:5433/d", {"user": "u", "password": "s", "host": "h", "port": "5433", "dbname": "d"}),
        ("postgresql+psycopg://u@h/d", {"user": "u", "host": "h", "dbname": "d"}),
        (
            "postgresql://u:p@host1:123,host2:456/somedb?target_session_attrs=any",
            {
                "user": "u",
                "password": "p",
                "host": "host1,host2",
                "port": "123,456",
                "dbname": "somedb",
                "target_session_attrs": "any",
            },
        ),
        (
            "postgresql://a,b/d?load_balance_hosts=random",
            {"host": "a,b", "port": ",", "dbname": "d", "load_balance_hosts": "random"},
        ),
        ("postgresql://[2001:db8::1234]:5/d", {"host": "2001:db8::1234", "port": "5", "dbname": "d"}),
        ("postgresql:///d?host=::1", {"host": "::1", "dbname": "d"}),
        ("postgresql:///d?host=/run/postgresql&port=5433", {"host": "/run/postgresql", "port": "5433", "dbname": "d"}),
        ("postgresql://%2Frun%2Fpostgresql/d", {"host": "/run/postgresql", "dbname": "d"}),
        ("postgresql:///d?host=a:5432&host=b:5433", {"host": "a,b", "port": "5432,5433", "dbname": "d"}),
        ("postgresql://u:p%40%2F%25@h/d%20e", {"user": "u", "password": "p@/%", "host": "h", "dbname": "d e"}),
        (
            "postgresql://h/d?sslmode=verify-full&sslrootcert=system&channel_binding=require",
            {
                "host": "h",
                "dbname": "d",
                "sslmode": "verify-full",
                "sslrootcert": "system",
                "channel_binding": "require",
            },
        ),
        ("postgresql://h/d?ssl=true", {"host": "h", "dbname": "d", "sslmode": "require"}),
        ("host=a,b port=1,2 dbname=d user=u", {"host": "a,b", "port": "1,2", "dbname": "d", "user": "u"}),
        ("host=h user=u password='it\\'s = here'", {"host": "h", "user": "u", "password": "it's = here"}),
    ],
)
def test_what_the_documents_write_is_taken(url: str, expected: dict[str, str]) -> None:
    found = parameters(url)
    assert {name: str(value) for name, value in found.items()} == expected
    # A backup hands it on as text.
    assert parameters(parse_url(url).render_as_string(hide_password=False)) == found


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://h/d", "must begin with postgresql://, not mysql://"),
        ("postgresql+asyncpg://h/d", "must begin with postgresql://"),
        ("postgresql://u:secret%zz@h:x,i/d", "cannot be parsed"),
        ("nonsense", "cannot be parsed"),
        ("service=prod", "must not name a service"),
        ("postgresql://?service=prod", "must not name a service"),
    ],
)
def test_what_is_no_url_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u@a:1,b:2/d", {"a", "b"}),
        ("host=a,b hostaddr=192.0.2.1,192.0.2.2", {"a", "b", "192.0.2.1", "192.0.2.2"}),
        ("postgresql:///d?host=a:5432&host=b:5433", {"a", "b"}),
        ("postgresql://[2001:db8::1]/d", {"2001:db8::1"}),
        ("postgresql:///d", set()),
    ],
)
def test_all_hosts_are_kept_from_kernels(url: str, hosts: set[str]) -> None:
    assert hosts_of(url) == hosts


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(parse_url("postgresql://u:secret@a,b/d"))
    assert "secret" not in repr(parse_url("host=a password=secret"))
