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
# To save and go on at once: qalter -l walltime=HH:MM:SS JOB, with five minutes more than have passed (limits.wall_time must be "auto",
# its default). Never qsig -s SIGUSR1 JOB: the signal kills the job's login shell, and all since the last checkpoint is lost.
#
# More variables for -v:
#   OPTIONS    words for the trainer; quotes hold words together, as in a shell
#   LEAD       seconds before the walltime at which saving begins (300); longer than one step, one evaluation and one save; at most a
#              quarter of the walltime. 0: left to the trainer's own clock (limits.margin_s)
#   MAX_PARTS  after so many parts there is no successor (20)
#   BIND       core: every rank keeps its own cores, right for whole nodes (place=excl). none: for nodes shared with other jobs
#   LOCAL_DIR  the nodes' own disk, for $TMPDIR (/tmp); not used where PBS sets a TMPDIR per job
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/pbs.sh)
#   TRAINER_MESH_SELECTOR  picks a [[mesh.rule]] of the deck
# A value with commas or quotes goes through the environment, its name alone to -v:
#   DECK=inputs/run.toml OPTIONS="--set 'train.mixture={a=1,b=3}'" qsub -v DECK,OPTIONS jobs/pbs.sh
#
#PBS -N trainer
# Threads per rank: ompthreads, or ncpus / mpiprocs where it is missing.
#PBS -l select=2:ncpus=32:mpiprocs=8:ompthreads=4
#PBS -l place=scatter:excl
#PBS -l walltime=24:00:00
# One log, which grows while the job runs. All that the job writes may be read by others.
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
# PBS's copy of this file lies elsewhere; its neighbours and the successor need the file itself.
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
check_number LEAD "$lead" 0
check_number PART "$part" 1
check_number MAX_PARTS "$max_parts" 1
check_program "$trainer"
split_words "${OPTIONS:-}"
# The successor of a task of an array is a job of its own, which knows the index from INDEX.
index=${PBS_ARRAY_INDEX:-${INDEX:-}}
fill_in "$index" "$DECK" "${options[@]}"
# Whatever mpirun and the trainer need from the site goes here, for example:  module load openmpi

# attributes: of this job, as PBS shows them. qstat folds long lines, so they are joined first.
ask_pbs() { attributes=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g'); }
ask_pbs
attribute() { sed -n "s/^ *$1 = //p" <<< "$attributes"; }
walltime=$(attribute Resource_List.walltime)
select=$(attribute Resource_List.select)
nodes=$(sort -u "$PBS_NODEFILE" | wc -l)

# Where ompthreads is missing, PBS sets OMP_NUM_THREADS to all cpus of a chunk, whatever the number of its ranks.
threads=${OMP_NUM_THREADS:-1}
[ -n "$select" ] && threads=$(threads_of "$select")

# The hosts are given, because an Open MPI built without PBS support does not ask PBS: it would start everything on this node. Not as
# --hostfile "$PBS_NODEFILE": a host that stands there once would get a rank per core.
launch=(--host "$(awk '!n[$1]++ {host[++k] = $1} END {for (i = 1; i <= k; ++i) {printf "%s%s:%d", s, host[i], n[host[i]]; s = ","}}' \
  "$PBS_NODEFILE")")
# Such an Open MPI starts its helpers on the other nodes by ssh, which many sites close: PBS starts them instead. All from this
# node, because the others have no copy of $PBS_NODEFILE.
agent=$(dirname "$script")/pbs_agent.sh
if [ "$nodes" -gt 1 ] && [ -z "${OMPI_MCA_plm_rsh_agent:-}" ] && command -v pbsdsh >/dev/null &&
  ! ompi_info 2>/dev/null | grep -q 'MCA plm: tm '; then
  launch+=(--mca plm_rsh_agent "$(realpath "$agent")" --mca plm_rsh_no_tree_spawn 1)
fi
bind_ranks "${BIND:-core}" "$threads"
make_tmpdir "$PBS_JOBID" "$nodes" "${launch[@]}"

# PBS gives no warning before the walltime, only a TERM to everything at its end: too late. So this script warns itself.
timer=
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
  echo "warning: qstat tells no walltime ('$walltime'): no save before the end, only the deck's own checkpoints" >&2
fi

echo "job $PBS_JOBID part $part on $(sort -u "$PBS_NODEFILE" | tr '\n' ' ')at $(date -Is): ${words[*]}"
describe_environment "$trainer"
run_trainer -np "$(wc -l < "$PBS_NODEFILE")" "${launch[@]}" "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
[ -n "$timer" ] && kill "$timer" 2>/dev/null
remove_tmpdir "$nodes" "${launch[@]}"
echo "job $PBS_JOBID part $part ended with $rc at $(date -Is)"

# inherit OPTION ATTRIBUTE [WITHOUT]: the successor gets what this job was submitted with, in the script or on the command line. OPTION
# may end in "NAME="; WITHOUT is the value that means none.
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

# The owner may not requeue a PBS job, so a new one is submitted that waits for the end of this one.
if may_continue "$part" "$max_parts"; then
  [ -n "$attributes" ] || ask_pbs
  # The walltime as it was at the start: it may have been cut since, to save and go on at once.
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
    # PBS knows no dependence on one task of an array; the successor may start at once, because the trainer has ended.
    export INDEX=$index
  else
    request+=(-W depend=afterany:"$PBS_JOBID")
  fi
  # By name, with values from the environment: qsub then keeps commas and quotes in them.
  export PART=$((part + 1)) MAX_PARTS=$max_parts LEAD=$lead BIND=${BIND:-core} TRAINER=$trainer SCRIPT=$script
  variables=DECK
  for name in PART MAX_PARTS LEAD BIND TRAINER SCRIPT OPTIONS LOCAL_DIR TRAINER_MESH_SELECTOR INDEX; do
    [ -n "${!name:-}" ] && variables+=",$name"
  done
  # A queue that takes jobs only from a routing queue refuses them: then they are submitted to that one.
  queue=$(attribute queue)
  if next=$(qsub ${queue:+-q "$queue"} "${request[@]}" -v "$variables" "$script") ||
    { [ "${PBS_O_QUEUE:-$queue}" != "$queue" ] && next=$(qsub -q "$PBS_O_QUEUE" "${request[@]}" -v "$variables" "$script"); }; then
    echo "continued by $next"
  else
    echo "not continued: qsub refused (message above); the last checkpoint is good, submit again to go on" >&2
  fi
fi
exit "$rc"
