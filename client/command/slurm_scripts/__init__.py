"""The batch scripts of Slurm: their options, and the environment of their jobs."""
