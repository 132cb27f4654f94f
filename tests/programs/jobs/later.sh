#!/bin/bash
# Not before tonight, and not on those nodes.
#SBATCH --begin=now+1hour
#SBATCH --exclude=node[13-14]
#SBATCH --time=10

./report
