#!/bin/bash
# A container, as Apptainer starts one.
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=01:00:00

apptainer exec --nv pytorch.sif python3 train.py
