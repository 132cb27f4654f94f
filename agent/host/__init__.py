"""The node's Linux: control groups, system calls, processes, threads."""
