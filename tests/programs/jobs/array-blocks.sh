#!/bin/bash
# An array in which each job does a block of the work.
#SBATCH --array=0-2
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=array-blocks-%a.out

block=10
first=$((SLURM_ARRAY_TASK_ID * block))
total=0
for ((number = first; number < first + block; number++)); do total=$((total + number)); done
echo "$first to $((first + block - 1)): $total"
