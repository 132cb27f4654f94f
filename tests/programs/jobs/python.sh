#!/usr/bin/env python3
# No shell at all.
#SBATCH --job-name=python
#SBATCH --mem=100M
#SBATCH --time=10
#SBATCH --output=python.out
import os

print("python in job", os.environ["SLURM_JOB_NAME"])
