"""Programs that answer in a browser and that many sessions have: what the name of each stands for, as an app and its
service port. Their images or nodes have to have them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.client.errors import UsageError
from retinue.manager.v1 import session_pb2
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HTTP, _LOCALHOST = "http", "localhost"


@dataclass(frozen=True, slots=True)
class CataloguedApp:
    """A program: what it is for, how it is installed, its command with places as in a definition of an app, the number
    of its port, and what callers add to its command. `host` is the one that it sees, empty for the browser's.

    None asks for a password: its port is for the session's owner.
    """

    name: str
    summary: str
    install: str
    command: tuple[str, ...]
    port: int
    arguments: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = ""

    def definition(self) -> session_pb2.AppDefinition:
        """Returns the app of a session that is asked for by this name."""
        return session_pb2.AppDefinition(
            name=self.name, command=self.command, environment=self.environment, allowed_arguments=["*"]
        )

    def service_port(self) -> port_pb2.ServicePort:
        """Returns its port, unless the session has one of its name."""
        return port_pb2.ServicePort(name=self.name, protocol=_HTTP, ports=[self.port], host=self.host)


CATALOGUE: Mapping[str, CataloguedApp] = {
    app.name: app
    for app in (
        CataloguedApp(
            "code-server",
            "VS Code",
            "npm install --global code-server",
            (
                "code-server",
                "--auth=none",
                "--bind-addr=127.0.0.1:{port}",
                "--disable-telemetry",
                "--disable-update-check",
            ),
            8443,
            arguments="[DIRECTORY]",
        ),
        CataloguedApp(
            "gradio",
            "demos of models",
            "pip install gradio",
            ("python3",),
            7860,
            arguments="SCRIPT.py",
            environment={
                "GRADIO_SERVER_NAME": "127.0.0.1",
                "GRADIO_SERVER_PORT": "{port}",
                "GRADIO_ANALYTICS_ENABLED": "False",
            },
        ),
        CataloguedApp(
            "jupyterlab",
            "notebooks, terminals, files",
            "pip install jupyterlab",
            (
                "jupyter",
                "lab",
                "--no-browser",
                "--ip=127.0.0.1",
                "--port={port}",
                "--ServerApp.port_retries=0",
                "--IdentityProvider.token=",
            ),
            8888,
            host=_LOCALHOST,
        ),
        CataloguedApp(
            "marimo",
            "reactive notebooks",
            "pip install marimo",
            (
                "marimo",
                "--yes",
                "edit",
                "--headless",
                "--no-token",
                "--skip-update-check",
                "--host=127.0.0.1",
                "--port={port}",
            ),
            2718,
            arguments="[NOTEBOOK.py]",
        ),
        CataloguedApp(
            "mlflow",
            "runs of experiments",
            "pip install mlflow",
            ("mlflow", "server", "--host=127.0.0.1", "--port={port}"),
            5000,
            arguments="[--backend-store-uri URI]",
            host=_LOCALHOST,
        ),
        CataloguedApp(
            "streamlit",
            "pages of Python scripts",
            "pip install streamlit",
            (
                "streamlit",
                "run",
                "--server.address=127.0.0.1",
                "--server.port={port}",
                "--server.headless=true",
                "--browser.serverAddress={host}",
                "--browser.gatherUsageStats=false",
            ),
            8501,
            arguments="SCRIPT.py",
        ),
        CataloguedApp(
            "tensorboard",
            "curves of training",
            "pip install tensorboard",
            ("tensorboard", "--host=127.0.0.1", "--port={port}", "--logdir=."),
            6006,
            arguments="[--logdir DIRECTORY]",
        ),
        CataloguedApp(
            "vite",
            "front ends in the making",
            "npm install --global vite",
            ("vite", "--host=127.0.0.1", "--port={port}", "--strictPort"),
            5173,
            arguments="[DIRECTORY]",
            # It would refuse the browser's name for it, but for those below localhost.
            host=_LOCALHOST,
        ),
    )
}
"""By name."""


def named(name: str) -> session_pb2.AppDefinition:
    """Returns the app of that name. Raises UsageError, with the names that there are."""
    if name not in CATALOGUE:
        raise UsageError(f"there is no app {name!r} in the catalogue, but {', '.join(CATALOGUE)}")
    return CATALOGUE[name].definition()


def complete(spec: session_pb2.SessionSpec) -> session_pb2.SessionSpec:
    """Gives apps without a command that of the catalogue, and each catalogued app its port; returns the request.
    Raises UsageError.
    """
    _fill(spec.apps)
    ports = {port.name for port in spec.service_ports}
    owners = {number: port.name for port in spec.service_ports for number in port.ports}
    for app in spec.apps:
        entry = CATALOGUE.get(app.name)
        if entry is None or app.name in ports or tuple(app.command) != entry.command:
            continue
        if entry.port in owners:
            raise UsageError(
                f"the app {app.name} would have port {entry.port}, which is {owners[entry.port]}: declare another with "
                f"`--port {app.name}:http:NUMBER`, or under servicePorts"
            )
        spec.service_ports.append(entry.service_port())
    return spec


def _fill(apps: Iterable[session_pb2.AppDefinition]) -> None:
    for app in apps:
        if not app.command and app.name in CATALOGUE:
            entry = CATALOGUE[app.name].definition()
            entry.MergeFrom(app)
            app.CopyFrom(entry)
