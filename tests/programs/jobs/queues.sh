#!/bin/bash
# What a site calls its queues, and what it has reserved.
#SBATCH --account=m1234
#SBATCH --partition=standard
#SBATCH --qos=premium
#SBATCH --reservation=course
#SBATCH --licenses=scratch,cfs:2
#SBATCH --constraint=cpu
#SBATCH --time=00:30:00

srun ./simulate
