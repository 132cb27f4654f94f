"""Tasks of Celery that call the manager; messages and results are files below `TASKS`."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from retinue.client import Client

_FOLDER = Path(os.environ["TASKS"])
app = Celery("tasks", broker="filesystem://", backend=f"file://{_FOLDER}/results")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(_FOLDER / "queue"),
        "data_folder_out": str(_FOLDER / "queue"),
        "control_folder": str(_FOLDER / "control"),
    },
    result_serializer="pickle",
    accept_content=["json", "pickle"],
    result_accept_content=["json", "pickle"],
)
CLIENT = Client.from_settings()


@app.task  # type: ignore[untyped-decorator]  # no types are published
def count() -> int:
    """Calls the manager."""
    return len(list(CLIENT.sessions.list(limit=1)))


@app.task  # type: ignore[untyped-decorator]  # no types are published
def missing() -> None:
    """Fails as the library fails."""
    CLIENT.sessions.get("no-such-session")
