#!/bin/bash
# MPI, its processes started by mpirun.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=300M
#SBATCH --time=00:10:00
#SBATCH --output=mpi-mpirun.out

mpirun -n "$SLURM_NTASKS" /usr/bin/python3 -c '
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
if world.rank == 0:
    print("size", world.size, "sum", total)
'
