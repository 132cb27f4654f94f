"""`retinue slurm-commands`: where programs by the names of Slurm's commands are."""

from __future__ import annotations

from pathlib import Path

import click

DIRECTORY = Path(__file__).with_name("bin")
"""Programs by the names of Slurm's commands, each of which calls ours of that name."""


@click.command("slurm-commands")
def slurm_commands_command() -> None:
    """Print a directory of programs by the names of Slurm's commands, which call those here.

    \b
      export PATH="$(retinue slurm-commands):$PATH"
      sbatch job.sh
    """
    click.echo(DIRECTORY)
