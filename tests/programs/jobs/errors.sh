#!/bin/bash
# Errors have a file of their own, and the exit code is the job's.
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=errors.out
#SBATCH --error=errors.err

echo "this is output"
echo "this is an error" >&2
exit 3
