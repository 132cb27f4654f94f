#!/bin/bash
# A job for each line of a list.
#SBATCH --job-name=sweep
#SBATCH --array=1-3
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=array-%a.out

word=$(sed -n "${SLURM_ARRAY_TASK_ID}p" <<'LIST'
red
green
blue
LIST
)
echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX: $word"
