"""A cluster on one machine: a manager and agents as processes, every agent on a node that is a network namespace."""
