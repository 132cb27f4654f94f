#!/bin/bash -l
# A program of several threads.
#SBATCH -J openmp
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -c 2
#SBATCH -t 0-00:10
#SBATCH --mem-per-cpu=50
#SBATCH -o openmp.out

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK OMP_PROC_BIND=close OMP_PLACES=cores
srun --cpu-bind=cores sh -c 'echo "threads $OMP_NUM_THREADS"'
