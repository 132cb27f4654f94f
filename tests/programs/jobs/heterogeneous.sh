#!/bin/bash
# Two parts of different size.
#SBATCH --ntasks=1 --cpus-per-task=8 --mem=64G
#SBATCH hetjob
#SBATCH --ntasks=16 --cpus-per-task=1 --mem-per-cpu=2G

srun ./server : ./worker
