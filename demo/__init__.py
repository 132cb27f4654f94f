"""The main job, end to end, on one machine: `python -m demo` from the repository's root, as root."""
