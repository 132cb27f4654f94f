#!/bin/bash
# It saves, and queues itself again, until all is done.
#SBATCH --job-name=steps
#SBATCH --time=00:01:00
#SBATCH --signal=B:USR1@55
#SBATCH --requeue
#SBATCH --mem=50M
#SBATCH --open-mode=append
#SBATCH --output=checkpoint-requeue.out

step=$(cat checkpoint-requeue.step 2>/dev/null || echo 0)
if [ "$step" = 1 ]; then
    echo "done after $SLURM_RESTART_COUNT restart"
    exit 0
fi
trap 'echo $((step + 1)) >checkpoint-requeue.step; scontrol requeue "$SLURM_JOB_ID"' USR1
echo "step $step"
sleep 3600 &
wait
sleep 3600
