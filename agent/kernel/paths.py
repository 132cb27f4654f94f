"""Paths in a kernel of files that are not of its image."""

HOME = "/home/work"
"""The kernel's own directory, and its user's home."""
NO_DIRECTORY = 214
"""Exit code of a kernel whose working directory its user cannot enter: the command was not started."""
PROGRAMS_PREFIX = "/run/kernel"
"""Lies in memory over the host's root, and can be made in any container;
other paths may be read-only mounts of the host's.
"""
PROGRAMS = f"{PROGRAMS_PREFIX}/bin"
STEPS = f"{PROGRAMS_PREFIX}/srun"
"""The program that starts the tasks of a job, which is in every kernel."""
FILES = f"{PROGRAMS_PREFIX}/ssh"
"""Keys and configuration of ssh."""
PYTHON = f"{PROGRAMS_PREFIX}/python"
"""The Python of code runs, for images that have no Jupyter kernel of their own."""
SERVER, SHELL_PROGRAM = "dropbear", "sh"
"""Names among the programs."""
STEP_NAMES = ("srun", "scontrol")
"""The names by which the program that starts tasks is called."""
