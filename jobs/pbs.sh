#!/usr/bin/env bash
# PBS job, submitted from the project's folder:
#   one run          qsub -v DECK=inputs/run.toml jobs/pbs.sh
#   several seeds    qsub -J 1-5 -v DECK=inputs/run.toml,OPTIONS="--set run.seed=%a --dir runs/seed-%a" jobs/pbs.sh
#   several decks    qsub -J 0-2 -v DECK=inputs/sweep-%a.toml jobs/pbs.sh
#
# Change the numbers below, or override them: qsub -l select=4:ncpus=32:mpiprocs=8:ompthreads=4 -l walltime=12:00:00 -v DECK=... jobs/pbs.sh
# One deck serves every number of nodes. Before its walltime is over the job saves a checkpoint, exits with 75 and submits its
# successor, which goes on where it stopped, also on other nodes.
#
# More variables for -v:
#   OPTIONS    words for the trainer, without commas
#   LEAD       seconds before the walltime at which saving begins (300); longer than one step, one evaluation and one save
#   MAX_PARTS  after so many parts there is no successor (20)
#   BIND       core: every rank keeps its own cores, right for whole nodes (place=excl). none: for nodes shared with other jobs
#   LOCAL_DIR  the nodes' own disk, for $TMPDIR (/tmp); not used where PBS sets a TMPDIR per job
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/pbs.sh)
#   TRAINER_MESH_SELECTOR  picks a [[mesh.rule]] of the deck, without commas
#
#PBS -N trainer
#PBS -l select=2:ncpus=32:mpiprocs=8:ompthreads=4
#PBS -l place=scatter:excl
#PBS -l walltime=24:00:00
#PBS -j oe
# Sites often want these as well (give them here, not to qsub: the successor gets only select and walltime from the command line):
##PBS -q ...
##PBS -A ...

set -u
lead=${LEAD:-300}
part=${PART:-1}
max_parts=${MAX_PARTS:-20}
trainer=${TRAINER:-build/trainer}
# PBS's copy of this file lies elsewhere; its neighbour and the successor need the file itself.
script=${SCRIPT:-jobs/pbs.sh}

if [ -z "${PBS_JOBID:-}" ]; then
  echo "error: this is a PBS job script: submit it with qsub -v DECK=inputs/run.toml jobs/pbs.sh" >&2
  exit 2
fi
cd "$PBS_O_WORKDIR" || exit 2
# shellcheck source=jobs/common.sh
if ! . "$(dirname "$script")/common.sh"; then
  echo "error: submit from the project's folder, or add SCRIPT=/path/to/jobs/pbs.sh to -v" >&2
  exit 2
fi
[ -n "${DECK:-}" ] || wrong "which deck? Submit with qsub -v DECK=inputs/run.toml $script"
[[ $lead =~ ^[0-9]+$ ]] || wrong "LEAD=$lead; it is a number of seconds"
check_program "$trainer"
read -r -a options <<< "${OPTIONS:-}"
# The successor of a task of an array is a job of its own, which knows the index from INDEX.
index=${PBS_ARRAY_INDEX:-${INDEX:-}}
fill_in "$index" "$DECK" "${options[@]}"
# Whatever mpirun and the trainer need from the site goes here, for example:  module load openmpi

# What PBS granted; long lines of qstat are folded, so they are joined first.
granted() { qstat -f "$PBS_JOBID" 2>/dev/null | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g' | sed -n "s/^ *Resource_List\.$1 = //p"; }
walltime=$(granted walltime)
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)

# The hosts are given, because an Open MPI built without PBS support does not ask PBS: it would start everything on this node. Not as
# --hostfile "$PBS_NODEFILE": a host that stands there once would get a rank per core.
launch=(--host "$(awk '!n[$1]++ {host[++k] = $1} END {for (i = 1; i <= k; ++i) {printf "%s%s:%d", s, host[i], n[host[i]]; s = ","}}' \
  "$PBS_NODEFILE")")
# Such an Open MPI starts its helpers on the other nodes by ssh. Where nodes refuse ssh, let PBS start them: save the two lines below
# as jobs/pbs_agent.sh, make it executable, and uncomment the third.
#   #!/bin/sh
#   h=$1; shift; exec pbsdsh -n $(( $(grep -nx "$h" "$PBS_NODEFILE" | head -n 1 | cut -d: -f1) - 1 )) -- /bin/sh -c "$*"
# launch+=(--mca plm_rsh_agent "$PWD/jobs/pbs_agent.sh")
bind_ranks "${BIND:-core}" "${OMP_NUM_THREADS:-1}"      # set by PBS from ompthreads
make_tmpdir "$PBS_JOBID" "$nodes" "${launch[@]}"

# PBS gives no warning before the walltime, only a TERM to everything at its end: too late. So this script warns itself.
timer=
if [[ $walltime =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
  limit=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
  if [ "$limit" -gt "$lead" ]; then
    ( sleep $((limit - lead - SECONDS)) & nap=$!; trap 'kill "$nap" 2>/dev/null; exit' TERM; wait "$nap"; kill -USR1 $$ ) & timer=$!
  else
    echo "warning: walltime $walltime is shorter than LEAD=$lead s: no save before the end, only the deck's own checkpoints" >&2
  fi
else
  echo "warning: qstat tells no walltime ('$walltime'): no save before the end, only the deck's own checkpoints" >&2
fi

echo "job $PBS_JOBID part $part on $(sort -u "$PBS_NODEFILE" | tr '\n' ' ')at $(date -Is): ${words[*]}"
describe_environment "$trainer"
run_trainer -np "$(wc -l < "$PBS_NODEFILE")" "${launch[@]}" "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
[ -n "$timer" ] && kill "$timer" 2>/dev/null
remove_tmpdir "$nodes" "${launch[@]}"
echo "job $PBS_JOBID part $part ended with $rc at $(date -Is)"

# The owner may not requeue a PBS job, so a new one is submitted that waits for the end of this one.
if may_continue "$part" "$max_parts"; then
  resources=(-l walltime="$walltime")
  select=$(granted select)
  [ -n "$select" ] && resources+=(-l select="$select")
  variables=DECK=$DECK,PART=$((part + 1)),MAX_PARTS=$max_parts,LEAD=$lead,BIND=${BIND:-core},TRAINER=$trainer,SCRIPT=$script
  [ -n "${OPTIONS:-}" ] && variables+=",OPTIONS=$OPTIONS"
  for name in LOCAL_DIR TRAINER_MESH_SELECTOR; do
    [ -n "${!name:-}" ] && variables+=",$name=${!name}"
  done
  if [ -n "$index" ]; then
    # PBS knows no dependence on one task of an array; the successor may start at once, because the trainer has ended.
    variables+=",INDEX=$index"
  else
    resources+=(-W depend=afterany:"$PBS_JOBID")
  fi
  if next=$(qsub "${resources[@]}" -v "$variables" "$script"); then
    echo "continued by $next"
  else
    echo "not continued: qsub refused (message above); the last checkpoint is good, submit again to go on" >&2
  fi
fi
exit "$rc"
