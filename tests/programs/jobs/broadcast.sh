#!/bin/bash
# The program is copied to the nodes first.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=broadcast.out

printf '#!/bin/sh\necho "a copy runs"\n' >broadcast.program
chmod +x broadcast.program
sbcast broadcast.program /tmp/program
srun /tmp/program
