"""Agents, their resource groups, and routers."""
