#!/bin/bash
# The program is told before its time limit, and saves what it has.
#SBATCH --time=00:01:00
#SBATCH --signal=B:USR1@55
#SBATCH --mem=50M
#SBATCH --open-mode=append
#SBATCH --output=checkpoint.out

save() {
    echo "saved"
    kill "$worker"
    exit 0
}
trap save USR1
sleep 3600 &
worker=$!
wait "$worker"
