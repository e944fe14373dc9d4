#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SLURM job, submitted from the project's folder:
#   one run          sbatch jobs/slurm.sh inputs/run.toml [trainer options, for example --set train.total_steps=1000]
#   several seeds    sbatch --array=1-5 jobs/slurm.sh inputs/run.toml --set run.seed=%a --dir runs/seed-%a
#   several decks    sbatch --array=0-2 jobs/slurm.sh inputs/sweep-%a.toml
#
# Change the numbers below, or override them:
#   sbatch --nodes=8 --time=12:00:00 jobs/slurm.sh inputs/run.toml
# One deck serves every number of nodes. A job that runs out of time, or is preempted with a
# warning, saves a checkpoint and exits with 75. This script requeues the job, which continues from
# the checkpoint, also on other nodes.
#
# Variables, for example BIND=none sbatch ...:
#   CONTINUE   requeue: the same job again. chain: another job after it, for sites that forbid requeueing; it gets nodes,
#              tasks, threads, partition and time from the first command line, and all else from the lines below
#   MAX_PARTS  largest number of parts; after the last one the job is not continued (20)
#   SPARE_NODES  so many of --nodes are spare; 0 and more: every node is tested first, and bad ones are left out
#                (jobs/README.md); unset: no node is tested
#   MAX_RESTARTS  starts without a node that went bad, in one part (3)
#   RESTART_S  seconds that such a start needs before the end of the job (600); with less the job is requeued
#   SELFTEST_S  seconds after which a node that has not passed its test is bad (300)
#   SLOW_BELOW  a node below this share of the nodes' median speed is bad (0.6)
#   BIND       core: every rank keeps its own cores, for whole nodes (--exclusive). none: for nodes shared with other jobs
#   LAUNCHER   the program that starts ranks (mpirun), for example the mpiexec of MPICH, or srun; with srun SRUN_MPI is pmix
#              (Open MPI) or pmi2 (MPICH, Intel MPI)
#   LOCAL_DIR  the nodes' own disk, for $TMPDIR (/tmp); unused if the site sets a TMPDIR per job
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/slurm.sh)
#   TRAINER_MESH_SELECTOR  chooses a [[mesh.rule]] of the deck
#
#SBATCH --job-name=trainer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
# The warning: USR1, 300 s before the end, to this script only (B:). The time must exceed one step,
# one evaluation and one save.
#SBATCH --signal=B:USR1@300
# Some sites requeue only on request. append keeps the output of the job's earlier parts.
#SBATCH --requeue
#SBATCH --open-mode=append
# Sites often want these as well:
##SBATCH --partition=...
##SBATCH --account=...

set -u
trainer=${TRAINER:-build/trainer}
continue=${CONTINUE:-requeue}
max_parts=${MAX_PARTS:-20}
# SLURM runs a copy of this file from elsewhere. common.sh and a successor need the original.
script=${SCRIPT:-jobs/slurm.sh}
part=$((${PART:-1} + ${SLURM_RESTART_COUNT:-0}))

if [ $# = 0 ]; then
  echo "usage: sbatch jobs/slurm.sh DECK [trainer options]" >&2
  exit 2
fi
if [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "error: this is a SLURM job script: submit it with sbatch jobs/slurm.sh $*" >&2
  exit 2
fi
# shellcheck source=jobs/common.sh
if ! . "$(dirname "$script")/common.sh"; then
  echo "error: submit from the project's folder, or set SCRIPT=/path/to/jobs/slurm.sh" >&2
  exit 2
fi
case $continue in
  requeue | chain) ;;
  *) wrong "CONTINUE=$continue; it is requeue or chain" ;;
esac
# A task's own job number can be that of the whole array, which means all tasks.
job=$SLURM_JOB_ID
[ -n "${SLURM_ARRAY_TASK_ID:-}" ] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
check_number MAX_PARTS "$max_parts" 1
# shellcheck source=jobs/spares.sh
. "$(dirname "$script")/spares.sh"
check_program "$trainer"
[ -n "${SLURM_JOB_NUM_NODES:-}" ] || wrong "SLURM_JOB_NUM_NODES is not set: submit the script with sbatch"
fill_in "${SLURM_ARRAY_TASK_ID:-}" "$@"
# Add commands that mpirun and the trainer need at the site here, for example:  module load openmpi

choose_launcher
bind_ranks "${BIND:-core}" "${SLURM_CPUS_PER_TASK:-1}"

# The seconds to the end of this job.
time_left() {
  local end
  end=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e | head -n 1)" +%s 2>/dev/null) || end=9999999999
  echo $((end - $(date +%s)))
}

echo "job $job part $part on ${SLURM_JOB_NODELIST:-?} at $(date -Is): ${words[*]}"
describe_environment "$trainer"
if [ -n "${SPARE_NODES:-}" ]; then
  # SLURM_TASKS_PER_NODE is for example 8(x3),4.
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # shellcheck disable=SC2153  # not SLURM_NTASKS_PER_NODE
  mapfile -t slots < <(tr , '\n' <<< "$SLURM_TASKS_PER_NODE" |
    awk -F '[(x)]+' '{for (i = 0; i < ($2 ? $2 : 1); ++i) print $1}')
  run_on_good_nodes "$SLURM_JOB_ID"
else
  make_tmpdir "$SLURM_JOB_ID" "$SLURM_JOB_NUM_NODES"
  # mpirun gets hosts and slots from SLURM.
  run_trainer "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
  remove_tmpdir "$SLURM_JOB_NUM_NODES"
fi
echo "job $job part $part ended with $rc at $(date -Is)"

if may_continue "$part" "$max_parts"; then
  excluded=$(squeue -h -j "$job" -o %x | head -n 1)
  [ "$excluded" != "(null)" ] || excluded=''
  for node in "${bad[@]}"; do excluded+=${excluded:+,}$node; done
  if [ "$continue" = requeue ]; then
    # SLURM ends this script with a TERM, and later with a KILL. The nodes to exclude can be set only
    # once the job is pending again, so the TERM must wait for that.
    if [ ${#bad[@]} -gt 0 ]; then trap '' TERM; else trap 'exit 75' TERM; fi
    if scontrol requeue "$job"; then
      if [ ${#bad[@]} -gt 0 ]; then
        for _ in {1..20}; do
          scontrol update JobId="$job" ExcNodeList="$excluded" && echo "continues without ${bad[*]}" && break
          sleep 0.5
        done
        trap 'exit 75' TERM
      fi
      sleep 60 & wait $!
    else
      echo "not continued: SLURM refused (message above); the last checkpoint is good," \
        "submit again to continue, or use CONTINUE=chain" >&2
    fi
  else
    limit=$(squeue -h -j "$job" -o %l | head -n 1)
    options=(--nodes="$SLURM_JOB_NUM_NODES" --partition="$SLURM_JOB_PARTITION" --job-name="$SLURM_JOB_NAME")
    [ -n "${SLURM_NTASKS:-}" ] && options+=(--ntasks="$SLURM_NTASKS")
    [ -n "${SLURM_NTASKS_PER_NODE:-}" ] && options+=(--ntasks-per-node="$SLURM_NTASKS_PER_NODE")
    [ -n "${SLURM_CPUS_PER_TASK:-}" ] && options+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    [ -n "$limit" ] && options+=(--time="$limit")
    [ -n "$excluded" ] && options+=(--exclude="$excluded")
    [ -n "${SLURM_ARRAY_TASK_ID:-}" ] && options+=(--array="$SLURM_ARRAY_TASK_ID")
    # The successor inherits the variables. This one would make it count a restart of this job.
    unset SLURM_RESTART_COUNT
    if PART=$((part + 1)) sbatch --dependency=afterany:"$job" "${options[@]}" "$script" "$@"; then
      echo "continued by the job above"
    else
      echo "not continued: SLURM refused (message above); the last checkpoint is good, submit again to continue" >&2
    fi
  fi
fi
exit "$rc"
