"""Endpoints: revisions, rollouts, replicas and tokens."""
