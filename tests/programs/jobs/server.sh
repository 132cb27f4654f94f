#!/bin/bash
# A notebook on a node, and a tunnel to it.
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=08:00:00
#SBATCH --output=jupyter-%j.out

port=8888
echo "ssh -N -L $port:$(hostname):$port $USER@login"
jupyter lab --no-browser --ip=0.0.0.0 --port=$port
