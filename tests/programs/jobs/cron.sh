#!/bin/bash
# Each run of it submits the next.
#SBATCH --dependency=singleton
#SBATCH --job-name=daily
#SBATCH --begin=now+1day
#SBATCH --time=10

./report
sbatch "$0"
