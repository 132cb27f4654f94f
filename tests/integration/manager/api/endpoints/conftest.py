"""The service that tests of endpoints call."""

from tests.integration.manager.endpoints.conftest import rig

__all__ = ["rig"]
