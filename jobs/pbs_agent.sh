#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pbs_agent.sh HOST COMMAND...: runs the command on a node of this job by PBS. It replaces ssh for
# an Open MPI that was built without PBS support, on nodes that refuse ssh. jobs/pbs.sh passes it to
# mpirun.
host=$1
shift
# pbsdsh counts the lines of the node file. Open MPI may have removed the host's domain.
line=$(awk -v h="$host" '$1 == h {print NR - 1; exit}' "$PBS_NODEFILE")
[ -n "$line" ] || line=$(awk -v h="${host%%.*}" '{sub(/\..*/, "", $1)} $1 == h {print NR - 1; exit}' "$PBS_NODEFILE")
if [ -z "$line" ]; then
  echo "error: $host is not in $PBS_NODEFILE: $(sort -u "$PBS_NODEFILE" | tr '\n' ' ')" >&2
  exit 1
fi
exec pbsdsh -n "$line" -- /bin/sh -c "$*"
