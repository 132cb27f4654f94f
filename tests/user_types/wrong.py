"""Mistakes that every type checker has to find: those with a comment, and no others; scripts/check-user-types."""

from retinue.client import Client


def wrong(client: Client) -> int:
    """Each line is wrong once."""
    done = client.run(["true"], slots={"cpu": 2}, clusters=3)  # wrong
    session = client.sessions.create(command=["true"], cluster_size="3")  # wrong
    _ = session.logs(folow=True)  # wrong
    _ = done.sesion  # wrong
    return done.text  # wrong
