"""Slurm's commands: the same options, words and exit codes, as far as they mean the same."""
