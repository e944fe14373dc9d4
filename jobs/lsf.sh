#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# LSF job, submitted from the project's folder. NEVER RUN UNDER A REAL LSF: a test imitates one.
#   one run          DECK=inputs/run.toml bsub < jobs/lsf.sh
#   other sizes      DECK=inputs/run.toml bsub -n 64 -W 12:00 < jobs/lsf.sh
#   several seeds    DECK=inputs/run.toml OPTIONS="--set run.seed=%a --dir runs/seed-%a" bsub -J "trainer[1-5]" < jobs/lsf.sh
#
# LSF warns the job 5 minutes before its end (-wa, -wt). The job then saves a checkpoint and exits with
# 75, and LSF queues it again (-Q).
#
# Variables, in the environment of bsub:
#   OPTIONS    words for the trainer; quotes hold words together, as in a shell
#   MAX_PARTS  largest number of parts; the last one is not queued again (20)
#   LAUNCHER   the program that starts ranks (mpirun), for example the mpiexec of MPICH or Intel MPI
#   BIND       core: every rank keeps its own cores, for whole nodes (-x). none: for nodes shared with other jobs
#   THREADS    threads per rank: the cores of a slot, as affinity[core(N)] below says (4)
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/lsf.sh)
#   TRAINER_MESH_SELECTOR  chooses a [[mesh.rule]] of the deck
#
#BSUB -J trainer
#BSUB -n 16
#BSUB -R "span[ptile=8] affinity[core(4)]"
#BSUB -x
#BSUB -W 24:00
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -Q 75
#BSUB -o trainer-%J.log
# Sites often want these as well:
##BSUB -q ...
##BSUB -P ...

set -u
trainer=${TRAINER:-build/trainer}
max_parts=${MAX_PARTS:-20}
# LSF runs a copy of this file from elsewhere. common.sh is beside the original.
script=${SCRIPT:-jobs/lsf.sh}

if [ -z "${LSB_JOBID:-}" ]; then
  echo "error: this is an LSF job script: submit it with DECK=inputs/run.toml bsub < jobs/lsf.sh" >&2
  exit 2
fi
if [ -z "${LS_SUBCWD:-}" ] || ! cd "$LS_SUBCWD"; then
  echo "error: there is no folder LS_SUBCWD=${LS_SUBCWD:-} on this node: submit from a folder that all nodes share" >&2
  exit 2
fi
# shellcheck source=jobs/common.sh
if ! . "$(dirname "$script")/common.sh"; then
  echo "error: submit from the project's folder, or set SCRIPT=/path/to/jobs/lsf.sh" >&2
  exit 2
fi
[ -n "${DECK:-}" ] || wrong "which deck? Submit with DECK=inputs/run.toml bsub < $script"
check_number MAX_PARTS "$max_parts" 1
check_number THREADS "${THREADS:-4}" 1
check_program "$trainer"
[ -n "${LSB_MCPU_HOSTS:-}" ] || wrong "LSB_MCPU_HOSTS is not set: LSF lists the hosts of a job there; submit the script with bsub"
split_words "${OPTIONS:-}"
index=${LSB_JOBINDEX:-0}
[ "$index" != 0 ] || index=
fill_in "$index" "$DECK" "${options[@]}"
# Add commands that mpirun and the trainer need at the site here, for example:  module load openmpi

# LSF gives a job that is queued again the same number, and does not count.
counter=.trainer-$LSB_JOBID${index:+-$index}.part
part=$(($(cat "$counter" 2>/dev/null || echo 0) + 1))
echo "$part" >"$counter"

choose_launcher
hosts_option "$(awk '{for (i = 1; i < NF; i += 2) printf "%s%s:%d", (i > 1 ? "," : ""), $i, $(i + 1)}' <<< "$LSB_MCPU_HOSTS")" \
  "$(awk '{for (i = 2; i <= NF; i += 2) n += $i; print n}' <<< "$LSB_MCPU_HOSTS")"
# An Open MPI built without LSF support starts its helpers by ssh.
if [ "$launcher_kind" = openmpi ] && ! ompi_info 2>/dev/null | grep -q 'MCA ras: lsf '; then
  on_hosts+=(--mca plm_rsh_agent blaunch --mca plm_rsh_no_tree_spawn 1)
fi
bind_ranks "${BIND:-core}" "${THREADS:-4}"

echo "job $LSB_JOBID part $part on $LSB_MCPU_HOSTS at $(date -Is): ${words[*]}"
describe_environment "$trainer"
run_trainer "${on_hosts[@]}" "${binding[@]}" "${passed_on[@]}" "$trainer" "${words[@]}"
echo "job $LSB_JOBID part $part ended with $rc at $(date -Is)"
if ! may_continue "$part" "$max_parts"; then
  rm -f "$counter"
  [ "$rc" != 75 ] || rc=8   # LSF would queue a job that ends with 75 again
fi
exit "$rc"
