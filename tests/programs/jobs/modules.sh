#!/bin/bash
# Software by environment modules.
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=modules.out

set -e
module purge
module load gcc/13
gcc --version
