#!/bin/bash
# It runs in another directory than that of submission.
#SBATCH --chdir=/tmp
#SBATCH --mem=50M
#SBATCH --time=10

pwd
