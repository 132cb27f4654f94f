"""The manager's side that agents and routers enrol with."""

from tests.integration.agent.conftest import manager

__all__ = ["manager"]
