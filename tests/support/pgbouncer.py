"""PgBouncer before the server of the tests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from retinue.devtools.cluster import free_ports
from tests.support.databases import Postgres, passable_directory
from tests.support.eventually import eventually_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def pooler(postgres: Postgres, mode: str, **settings: object) -> Iterator[str]:
    """Runs one in a pool mode while the block lasts; the value is a URL that lacks the name of the database."""
    with psycopg.connect(postgres.url_of("postgres")) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        (user,) = connection.execute("SELECT current_user::text").fetchone() or ("",)
    # The socket is within reach of the server's user only.
    owner = Path(data).stat()
    port = free_ports()[0]
    with passable_directory() as directory:
        os.chown(directory, owner.st_uid, owner.st_gid)
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": 60,
            "logfile": directory / "log",
            **settings,
        }
        configuration = directory / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host={data} user={user}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        account: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        process = subprocess.Popen(
            ["/usr/sbin/pgbouncer", "-q", str(configuration)], **(account if os.geteuid() == 0 else {})
        )
        url = f"postgresql://{user}@127.0.0.1:{port}"

        def is_ready() -> bool:
            assert process.poll() is None, (directory / "log").read_text()
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                return True
            return False

        try:
            eventually_blocking(is_ready)
            yield url
        finally:
            process.kill()
            process.wait()
