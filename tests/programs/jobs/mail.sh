#!/bin/bash
# Mail about what becomes of it.
#SBATCH --mail-type=BEGIN,END,FAIL,TIME_LIMIT_80
#SBATCH --mail-user=ann@example.org
#SBATCH --wckey=paper
#SBATCH --nice=100
#SBATCH --mem=50M
#SBATCH --time=10
#SBATCH --output=mail.out

echo "no mail"
