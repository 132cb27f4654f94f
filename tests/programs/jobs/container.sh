#!/bin/bash
# A container, as Pyxis starts one.
#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.05-py3
#SBATCH --container-mounts=/srv/data:/data:ro
#SBATCH --gpus-per-node=1
#SBATCH --time=01:00:00

python3 train.py --data /data
