#!/bin/bash
# A process on each node, with several threads each.
#SBATCH --job-name=hybrid
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=50M
#SBATCH --time=01:00:00
#SBATCH --switches=1
#SBATCH --output=hybrid.out

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" sh -c 'echo "rank $SLURM_PROCID, threads $OMP_NUM_THREADS"' | sort
