"""The database of these tests is empty, and led in the term that the nodes of `reporting_node` obey."""

from tests.integration.manager.reporting_node import database

__all__ = ["database"]
