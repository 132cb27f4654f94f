#!/bin/bash
# Tasks wherever there is room.
#SBATCH --ntasks=3
#SBATCH --mem-per-cpu=50M
#SBATCH --time=5
#SBATCH --output=tasks-anywhere.out

srun --label sh -c 'echo "of $SLURM_NTASKS"' | sort
