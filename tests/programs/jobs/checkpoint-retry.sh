#!/bin/bash
# It saves, and runs again where it stopped, with a line of Retinue's own.
#SBATCH --job-name=steps
#SBATCH --time=00:01:00
#SBATCH --signal=B:USR1@55
#SBATCH --mem=50M
#SBATCH --open-mode=append
#SBATCH --output=checkpoint-retry.out
#RETINUE --retry 10 --retry-on-failure --retry-backoff 1s

step=$(cat checkpoint-retry.step 2>/dev/null || echo 0)
if [ "$step" = 1 ]; then
    echo "done"
    exit 0
fi
trap 'echo $((step + 1)) >checkpoint-retry.step; exit 1' USR1
echo "step $step"
sleep 3600 &
wait
