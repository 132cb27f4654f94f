#!/bin/bash
# It has arguments of its own.
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=arguments.out

echo "$# arguments: ${1:-none}"
