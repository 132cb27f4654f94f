#!/bin/bash
# It may be taken off its node, and runs again.
#SBATCH --requeue
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=preemptible.out

trap 'echo "told to end"; exit 143' TERM
echo "run ${SLURM_RESTART_COUNT:-0}"
