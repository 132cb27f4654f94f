#!/bin/bash
# One thread on each core, as on machines with hyperthreads.
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --hint=nomultithread
#SBATCH --distribution=block:block
#SBATCH --mem=100M
#SBATCH --time=10
#SBATCH --output=no-multithreading.out

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --hint=nomultithread --distribution=block:block sh -c 'echo "step of $SLURM_CPUS_PER_TASK processors"'
