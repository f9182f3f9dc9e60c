#!/bin/bash
# A training on several ranks without a batch system, or within one's interactive session:
#
#   examples/jobs/mpiexec.sh RANKS SECONDS DATA.h5 [options of train.py]      (in the project's folder)
#
# After SECONDS it is warned, saves itself and ends with status 85; until then it may also be warned by hand, with
# kill -USR1 of mpiexec. Started again with the same --checkpoint it goes on, with as many ranks as you then give.
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
ranks=$1 seconds=$2
shift 2
exec timeout --signal=USR1 --preserve-status "$seconds" mpiexec -n "$ranks" python -m examples.jobs.train "$@"
