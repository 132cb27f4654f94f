#!/bin/bash
# MPI, its processes started by srun.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=300M
#SBATCH --time=00:10:00
#SBATCH --output=mpi-srun.out

srun --mpi=pmix /usr/bin/python3 -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.size)'
