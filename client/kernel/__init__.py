"""Access to a running kernel: attached commands, code, files and ports."""
