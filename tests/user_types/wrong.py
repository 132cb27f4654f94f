"""Mistakes that every type checker has to find: those with a comment, and no others; scripts/check-user-types."""

from retinue.client import Client


def wrong(client: Client) -> int:
    """Each line is wrong once."""
    done = client.run(["true"], slots={"cpu": 2}, clusters=3)  # wrong
    session = client.sessions.create(command=["true"], cluster_size="3")  # wrong
    _ = session.logs(folow=True)  # wrong
    _ = done.sesion  # wrong
    client.sessions.create(command=["true"], isolation="containr")  # wrong
    session.wait("RUNING", timeout=3)  # wrong
    client.users.create("ann", role="boss")  # wrong
    return done.text  # wrong
