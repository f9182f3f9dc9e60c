#!/bin/bash
# A training under PBS that goes on by itself when its time is up:
#
#   qsub -v DATA=DATA.h5 examples/jobs/pbs.sh      (in the project's folder)
#
# PBS sends no warning of the user's choice, so `timeout` does: USR1 goes to mpiexec, which hands it on to all ranks (MPICH's
# and Open MPI's do). They save a checkpoint, leave a file that says so, and end; this script hands in the next job.
#
#PBS -N solar
#PBS -l select=2:ncpus=32:mpiprocs=4
#PBS -l walltime=04:00:00
#PBS -j oe
set -euo pipefail
seconds=$((4 * 3600 - 120)) # the walltime above, less two minutes to save in
cd "$PBS_O_WORKDIR"

# Here: module load ..., and the environment in which solar is installed.
# source .venv/bin/activate

checkpoint=${CHECKPOINT:-checkpoint-${PBS_JOBID%%.*}.pt}
ranks=$(wc -l <"$PBS_NODEFILE") # a line for each rank, because of mpiprocs

status=0
timeout --signal=USR1 --preserve-status "$seconds" \
  mpiexec -n "$ranks" --hostfile "$PBS_NODEFILE" \
  python -m examples.jobs.train "$DATA" --checkpoint "$checkpoint" || status=$?

if [ -e "$checkpoint.again" ]; then
  qsub -v "DATA=$DATA,CHECKPOINT=$checkpoint" examples/jobs/pbs.sh
fi
exit "$status"
