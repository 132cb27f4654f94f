#!/bin/bash
# Fast files of the node while it runs, results in the directory of submission.
#SBATCH --mem=100M
#SBATCH --time=10
#SBATCH --output=scratch.out

set -eu
work=${TMPDIR:-/tmp}/$USER.$SLURM_JOB_ID
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
cd "$work"
seq 3 >numbers
cp numbers "$SLURM_SUBMIT_DIR/scratch.numbers"
echo "$(wc -l <"$SLURM_SUBMIT_DIR/scratch.numbers") lines are back"
