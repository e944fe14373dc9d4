#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PBS job, submitted from the project's folder:
#   one run          qsub -v DECK=inputs/run.toml jobs/pbs.sh
#   several seeds    qsub -J 1-5 -v DECK=inputs/run.toml,OPTIONS="--set run.seed=%a --dir runs/seed-%a" jobs/pbs.sh
#   several decks    qsub -J 0-2 -v DECK=inputs/sweep-%a.toml jobs/pbs.sh
#
# Change the numbers below, or override them:
#   qsub -l select=4:ncpus=32:mpiprocs=8:ompthreads=4 -l walltime=12:00:00 -v DECK=... jobs/pbs.sh
# One deck serves every number of nodes. Before its walltime ends, the job saves a checkpoint, exits
# with 75 and submits its successor. The successor continues from the checkpoint, also on other
# nodes.
#
# To save and continue now: qalter -l walltime=HH:MM:SS JOB, five minutes more than have passed
# (limits.wall_time must be "auto", its default). Never qsig -s SIGUSR1 JOB: the signal kills the
# job's login shell, and all progress since the last checkpoint is lost.
#
# More variables for -v:
#   OPTIONS    words for the trainer; quotes hold words together, as in a shell
#   LEAD       seconds between the start of saving and the end of the walltime (300): longer than one step, one evaluation
#              and one save; at most a quarter of the walltime. 0: the trainer's own clock decides (limits.margin_s)
#   MAX_PARTS  largest number of parts; the last one has no successor (20)
#   SPARE_NODES  so many nodes of the select are spare; 0 and more: every node is tested first, and bad ones are left out
#              (jobs/README.md); unset: no node is tested
#   MAX_RESTARTS  starts without a node that went bad, in one part (3)
#   RESTART_S  seconds that such a start needs before the end of the walltime (600); with less a successor is submitted
#   SELFTEST_S  seconds after which a node that has not passed its test is bad (300)
#   SLOW_BELOW  a node below this share of the nodes' median speed is bad (0.6)
#   BIND       core: every rank keeps its own cores, for whole nodes (place=excl). none: for nodes shared with other jobs
#   LAUNCHER   the program that starts ranks (mpirun), for example the mpiexec of MPICH or Intel MPI
#   LOCAL_DIR  the nodes' own disk, for $TMPDIR (/tmp); unused if PBS sets a TMPDIR per job
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/pbs.sh)
#   TRAINER_MESH_SELECTOR  chooses a [[mesh.rule]] of the deck
# Put a value with commas or quotes into the environment, and its name alone into -v:
#   DECK=inputs/run.toml OPTIONS="--set 'train.mixture={a=1,b=3}'" qsub -v DECK,OPTIONS jobs/pbs.sh
#
#PBS -N trainer
# Threads per rank: ompthreads, or ncpus / mpiprocs without it.
#PBS -l select=2:ncpus=32:mpiprocs=8:ompthreads=4
#PBS -l place=scatter:excl
#PBS -l walltime=24:00:00
# One log, which grows while the job runs. Other users may read the job's files.
#PBS -j oe
#PBS -k oed
#PBS -W umask=022
# Sites often want these as well:
##PBS -q ...
##PBS -A ...

set -u
lead=${LEAD:-300}
part=${PART:-1}
max_parts=${MAX_PARTS:-20}
trainer=${TRAINER:-build/trainer}
# PBS runs a copy of this file from elsewhere. The files beside it and the successor need the
# original.
script=${SCRIPT:-jobs/pbs.sh}

if [ -z "${PBS_JOBID:-}" ]; then
  echo "error: this is a PBS job script: submit it with qsub -v DECK=inputs/run.toml jobs/pbs.sh" >&2
  exit 2
fi
if [ -z "${PBS_O_WORKDIR:-}" ] || ! cd "$PBS_O_WORKDIR"; then
  echo "error: there is no folder PBS_O_WORKDIR=${PBS_O_WORKDIR:-} on this node: submit from a folder that all nodes share" >&2
  exit 2
fi
# shellcheck source=jobs/common.sh
if ! . "$(dirname "$script")/common.sh"; then
  echo "error: submit from the project's folder, or add SCRIPT=/path/to/jobs/pbs.sh to -v" >&2
  exit 2
fi
[ -n "${DECK:-}" ] || wrong "which deck? Submit with qsub -v DECK=inputs/run.toml $script"
check_number LEAD "$lead" 0
check_number PART "$part" 1
check_number MAX_PARTS "$max_parts" 1
# shellcheck source=jobs/spares.sh
. "$(dirname "$script")/spares.sh"
check_program "$trainer"
check_hosts
split_words "${OPTIONS:-}"
# The successor of an array's task is a single job; INDEX gives it the index.
index=${PBS_ARRAY_INDEX:-${INDEX:-}}
fill_in "$index" "$DECK" "${options[@]}"
# Add commands that mpirun and the trainer need at the site here, for example:  module load openmpi

# Sets attributes to this job's attributes, as PBS shows them. qstat folds long lines, so they are
# joined first.
ask_pbs() { attributes=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g'); }
ask_pbs
attribute() { sed -n "s/^ *$1 = //p" <<< "$attributes"; }
walltime=$(attribute Resource_List.walltime)
select=$(attribute Resource_List.select)
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)

# Without ompthreads, PBS sets OMP_NUM_THREADS to all cpus of a chunk, for any number of ranks.
threads=${OMP_NUM_THREADS:-1}
[ -n "$select" ] && threads=$(threads_of "$select")

# The hosts are given because an Open MPI built without PBS support does not ask PBS and would start
# all ranks on this node.
# --hostfile "$PBS_NODEFILE" would give a host that is listed once a rank per core.
agent=()
choose_launcher
hosts_option "$(awk '!n[$1]++ {host[++k] = $1} END {for (i = 1; i <= k; ++i) {printf "%s%s:%d", s, host[i], n[host[i]]; s = ","}}' \
  "$PBS_NODEFILE")" "$(wc -l < "$PBS_NODEFILE")"
launch=("${on_hosts[@]:0:2}") ranks=("${on_hosts[@]:2}")
# Without PBS support Open MPI starts its helpers on the other nodes by ssh, which many sites close.
# PBS starts them instead, all from this node, because the others have no copy of $PBS_NODEFILE.
if [ "$launcher_kind" = openmpi ] && [ "$nodes" -gt 1 ] && [ -z "${OMPI_MCA_plm_rsh_agent:-}" ] && command -v pbsdsh >/dev/null &&
  ! ompi_info 2>/dev/null | grep -q 'MCA plm: tm '; then
  agent=(--mca plm_rsh_agent "$(realpath "$(dirname "$script")/pbs_agent.sh")" --mca plm_rsh_no_tree_spawn 1)
  launch+=("${agent[@]}")
fi
bind_ranks "${BIND:-core}" "$threads"
[ -n "${SPARE_NODES:-}" ] || make_tmpdir "$PBS_JOBID" "$nodes" "${launch[@]}"

# PBS gives no warning before the walltime, only a TERM to all processes at its end, which is too
# late. A timer of this script gives the warning.
timer=
limit=9999999999
time_left() { echo $((limit - SECONDS)); }
if [[ $walltime =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
  limit=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
  early=$lead
  if [ "$early" -gt $((limit / 4)) ]; then
    early=$((limit / 4))
    echo "warning: LEAD=$lead s is more than a quarter of the walltime $walltime: saving begins $early s before its end" >&2
  fi
  nap=$((limit - early - SECONDS))
  if [ "$lead" -gt 0 ]; then
    ( sleep $((nap > 0 ? nap : 0)) & nap=$!; trap 'kill "$nap" 2>/dev/null; exit' TERM; wait "$nap"; kill -USR1 $$ ) & timer=$!
  fi
else
  echo "warning: qstat shows no walltime ('$walltime'): no save before the end, only the deck's own checkpoints" >&2
fi

echo "job $PBS_JOBID part $part on $(sort -u "$PBS_NODEFILE" | tr '\n' ' ')at $(date -Is): ${words[*]}"
describe_environment "$trainer"
if [ -n "${SPARE_NODES:-}" ]; then
  mapfile -t hosts < <(awk '!n[$1]++ {print $1}' "$PBS_NODEFILE")
  mapfile -t slots < <(awk '!n[$1]++ {host[++k] = $1} END {for (i = 1; i <= k; ++i) print n[host[i]]}' "$PBS_NODEFILE")
  run_on_good_nodes "$PBS_JOBID"
else
  run_trainer "${ranks[@]}" "${launch[@]}" "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
fi
[ -n "$timer" ] && kill "$timer" 2>/dev/null
[ -n "${SPARE_NODES:-}" ] || remove_tmpdir "$nodes" "${launch[@]}"
echo "job $PBS_JOBID part $part ended with $rc at $(date -Is)"

# inherit OPTION ATTRIBUTE [WITHOUT]: gives the successor this job's attribute, from the script or
# from the command line. OPTION may end in "NAME="; WITHOUT is the value that means none.
request=()
inherit() {
  local value
  value=$(attribute "$2")
  [ -n "$value" ] && [ "$value" != "${3:-}" ] || return 0
  case $1 in
    *=) request+=("${1%% *}" "${1#* }$value") ;;
    *) request+=("$1" "$value") ;;
  esac
}

# Owners may not requeue PBS jobs, so the script submits a new job that waits for the end of this
# one.
if may_continue "$part" "$max_parts"; then
  [ -n "$attributes" ] || ask_pbs
  # The walltime at the start: the user may have shortened it since, to save and continue now.
  [ -n "$walltime" ] && request+=(-l walltime="$walltime")
  inherit "-l select=" Resource_List.select
  inherit "-l place=" Resource_List.place
  inherit -N Job_Name
  inherit -A Account_Name
  inherit -P project _pbs_project_default
  inherit -j Join_Path
  inherit -k Keep_Files
  inherit "-W umask=" umask
  if [ -n "$index" ]; then
    # PBS has no dependence on one task of an array. The successor may start at once, because the
    # trainer has ended.
    export INDEX=$index
  else
    request+=(-W depend=afterany:"$PBS_JOBID")
  fi
  # -v gets names alone, and the environment the values, because qsub then keeps commas and quotes.
  export PART=$((part + 1)) MAX_PARTS=$max_parts LEAD=$lead BIND=${BIND:-core} TRAINER=$trainer SCRIPT=$script
  # A select cannot exclude hosts. If the successor gets these again, it leaves them idle.
  for name in "${bad[@]}"; do BAD_HOSTS=${BAD_HOSTS:-}${BAD_HOSTS:+,}$name; done
  export BAD_HOSTS=${BAD_HOSTS:-}
  variables=DECK
  for name in PART MAX_PARTS LEAD BIND TRAINER SCRIPT OPTIONS LOCAL_DIR LAUNCHER TRAINER_MESH_SELECTOR INDEX SPARE_NODES MAX_RESTARTS \
    RESTART_S SELFTEST_S SLOW_BELOW BAD_HOSTS; do
    [ -n "${!name:-}" ] && variables+=",$name"
  done
  # A queue that accepts jobs only from a routing queue refuses this one; the routing queue is tried
  # next.
  queue=$(attribute queue)
  if next=$(qsub ${queue:+-q "$queue"} "${request[@]}" -v "$variables" "$script") ||
    { [ "${PBS_O_QUEUE:-$queue}" != "$queue" ] && next=$(qsub -q "$PBS_O_QUEUE" "${request[@]}" -v "$variables" "$script"); }; then
    echo "continued by $next"
  else
    echo "not continued: qsub refused (message above); the last checkpoint is good, submit again to continue" >&2
  fi
fi
exit "$rc"
