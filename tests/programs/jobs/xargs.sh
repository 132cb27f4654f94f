#!/bin/bash
# As many at a time as there are processors.
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=100M
#SBATCH --time=10
#SBATCH --output=xargs.out

seq 5 | xargs -P "$SLURM_CPUS_PER_TASK" -I{} sh -c 'echo "file {}"' | sort
