#!/bin/bash
# What distributed training does before it trains.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=100M
#SBATCH --time=10
#SBATCH --output=rendezvous.out

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=$(echo "$hosts" | head -n 1)
export MASTER_ADDR
echo "$(echo "$hosts" | wc -l) hosts"
srun bash -c 'getent hosts "$MASTER_ADDR" >/dev/null && echo "$SLURM_NODEID of $SLURM_NNODES finds the first"' | sort
