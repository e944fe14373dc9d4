#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Flux job, submitted from the project's folder. NEVER RUN UNDER A REAL FLUX: a test imitates one.
#   one run          flux batch jobs/flux.sh inputs/run.toml [trainer options]
#   other sizes      FLUX_OPTIONS="-N 8 -n 64 -t 12h" flux batch -N 8 -n 64 -t 12h jobs/flux.sh inputs/run.toml
#
# Before its time ends, the job saves a checkpoint, exits with 75 and submits its successor.
#
# Variables, in the environment of flux batch:
#   FLUX_OPTIONS  options of flux batch for the successor, which knows only the lines below (none)
#   LEAD       seconds between the start of saving and the end of the job (300)
#   MAX_PARTS  largest number of parts; the last one has no successor (20)
#   RANKS      ranks (all cores of the job, divided by THREADS).   THREADS  threads per rank (4)
#   TRAINER    the program (build/trainer).   SCRIPT  this file (jobs/flux.sh)
#   TRAINER_MESH_SELECTOR  chooses a [[mesh.rule]] of the deck
#
#flux: -N 2
#flux: --exclusive
#flux: --time-limit=24h
#flux: --job-name=trainer
#flux: --output=trainer-{{id}}.log

set -u
lead=${LEAD:-300}
part=${PART:-1}
max_parts=${MAX_PARTS:-20}
threads=${THREADS:-4}
trainer=${TRAINER:-build/trainer}
# Flux runs a copy of this file from elsewhere. common.sh and a successor need the original.
script=${SCRIPT:-jobs/flux.sh}

if [ $# = 0 ]; then
  echo "usage: flux batch jobs/flux.sh DECK [trainer options]" >&2
  exit 2
fi
if ! job=$(flux getattr jobid 2>/dev/null) || [ -z "$job" ]; then
  echo "error: this is a Flux job script: submit it with flux batch jobs/flux.sh $*" >&2
  exit 2
fi
# shellcheck source=jobs/common.sh
if ! . "$(dirname "$script")/common.sh"; then
  echo "error: submit from the project's folder, or set SCRIPT=/path/to/jobs/flux.sh" >&2
  exit 2
fi
check_number LEAD "$lead" 0
check_number PART "$part" 1
check_number MAX_PARTS "$max_parts" 1
check_number THREADS "$threads" 1
check_program "$trainer"
fill_in "" "$@"
cores=$(flux resource list -s up -no '{ncores}')
check_number "number of cores" "$cores" 1
ranks=${RANKS:-$((cores < threads ? 1 : cores / threads))}
check_number RANKS "$ranks" 1
# Add commands that the trainer needs at the site here, for example:  module load openmpi

export OMP_NUM_THREADS=$threads OMP_PROC_BIND=${OMP_PROC_BIND:-true} OMP_PLACES=${OMP_PLACES:-cores}

# A timer of this script gives the warning.
timer=
left=$(flux job timeleft 2>/dev/null)
left=${left%%.*}
if [[ $left =~ ^[0-9]{1,8}$ ]]; then
  nap=$((left - (lead < left / 4 ? lead : left / 4)))
  if [ "$lead" -gt 0 ]; then
    ( sleep $((nap > 0 ? nap : 0)) & nap=$!; trap 'kill "$nap" 2>/dev/null; exit' TERM; wait "$nap"; kill -USR1 $$ ) & timer=$!
  fi
else
  echo "warning: flux job timeleft gives no time ('$left'), so the job saves when the deck says so, and not before its end" >&2
fi

echo "job $job part $part on $(flux resource list -s up -no '{nodelist}') at $(date -Is): ${words[*]}"
launcher=(flux) launcher_version=$(flux --version 2>/dev/null | head -n 1)
describe_environment "$trainer"

# shellcheck disable=SC2317  # run_trainer calls it
# Flux starts ranks itself, binds each to its cores, and takes signals for them by a command of its own.
flux_ranks() {
  local flux_run status
  trap 'flux job kill --signal=USR1 "$(flux job last)"' USR1
  trap 'flux job kill --signal=QUIT "$(flux job last)"' ALRM
  flux run -n "$ranks" -c "$threads" -o cpu-affinity=per-task "$@" & flux_run=$!
  while :; do
    wait "$flux_run"
    status=$?
    kill -0 "$flux_run" 2>/dev/null || break
  done
  exit "$status"
}
launcher=(flux_ranks)
run_trainer "$trainer" "${words[@]}"
[ -z "$timer" ] || kill "$timer" 2>/dev/null
echo "job $job part $part ended with $rc at $(date -Is)"

if may_continue "$part" "$max_parts"; then
  split_words "${FLUX_OPTIONS:-}"
  # The job is an instance of Flux; its successor belongs to the one above.
  if PART=$((part + 1)) flux --parent batch --dependency=afterany:"$job" "${options[@]}" "$script" "$@"; then
    echo "continued by the job above"
  else
    echo "not continued: Flux refused (message above); the last checkpoint is good, submit again to continue" >&2
  fi
fi
exit "$rc"
