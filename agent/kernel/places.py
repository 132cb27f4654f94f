"""Where things are in a kernel that are not of its image."""

HOME = "/home/work"
"""The kernel's own directory, and its user's home."""
PROGRAMS = "/opt/kernel/bin"
FILES = "/opt/kernel/ssh"
"""Keys and configuration of ssh."""
SERVER, SHELL_PROGRAM = "dropbear", "sh"
"""Names among the programs."""
