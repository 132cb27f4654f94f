#!/bin/bash
# Nothing of the environment of submission, but what is named.
#SBATCH --export=SEED=42
#SBATCH --get-user-env
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=environment.out

echo "seed $SEED, secret ${NOT_NAMED:-stays outside}"
