#!/bin/bash
# Many small programs beside each other.
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --mem=200M
#SBATCH --time=10
#SBATCH --output=many-tasks.out
#SBATCH --error=many-tasks.err

for number in 1 2 3 4; do
    srun --ntasks=1 --nodes=1 --exact --mem=50M sh -c "echo $((number * number)) >many-tasks.$number" &
done
wait
sort -n many-tasks.[1-4]
