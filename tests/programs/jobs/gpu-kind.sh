#!/bin/bash
# GPUs of one kind.
#SBATCH --gpus=a100:2
#SBATCH --constraint=nvlink
#SBATCH --cpus-per-gpu=8
#SBATCH --time=04:00:00

srun python3 train.py
