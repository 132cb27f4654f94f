#!/bin/bash
# A node of one's own, with all that it has.
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=02:00:00

srun ./simulate
