#!/bin/bash
# A different program for each task.
#SBATCH --ntasks=3
#SBATCH --mem-per-cpu=50M
#SBATCH --time=10
#SBATCH --output=multi-prog.out

cat >multi-prog.conf <<'TASKS'
0   echo controller
1-2 echo worker %t of 2
TASKS
srun --multi-prog multi-prog.conf | sort
