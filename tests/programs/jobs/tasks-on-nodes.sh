#!/bin/bash
# The same program, two on each of two nodes.
#SBATCH --job-name=tasks
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --mem=100M
#SBATCH --time=00:10:00
#SBATCH --output=tasks-on-nodes.out

echo "$SLURM_NTASKS tasks on $SLURM_JOB_NUM_NODES nodes, $SLURM_TASKS_PER_NODE"
srun sh -c 'echo "task $SLURM_PROCID is $SLURM_LOCALID on node $SLURM_NODEID"' | sort
