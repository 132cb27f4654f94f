#!/bin/bash
# Every fifth index, one at a time, an output for each.
#SBATCH -a 0-10:5%1
#SBATCH -o array-throttled-%4a.out
#SBATCH --mem=50M
#SBATCH -t 10

echo "$((SLURM_ARRAY_TASK_ID * 2)), one of $SLURM_ARRAY_TASK_COUNT"
