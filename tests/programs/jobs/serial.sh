#!/bin/bash
# One program on one processor.
#SBATCH --job-name=serial
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
#SBATCH --mem=100M
#SBATCH --output=%x-%j.out

echo "job $SLURM_JOB_NAME, $SLURM_NTASKS task, $SLURM_NNODES node"
seq 4 | awk '{ sum += $1 } END { print "sum", sum }'
