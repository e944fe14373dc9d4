#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The steps of the site's checks, one a start, in the present folder:   tests/site/steps.sh CHECK
# checks.py lets ReFrame run them and judges what they print. A check that passes ends with "passed CHECK".
#   TRAINER   the program (build/trainer)
#   LAUNCH    starts N ranks, before the program: "mpirun -np" (the default), "srun -n"
#   RANKS     the largest number of ranks, a power of two up to 8 (2)
#   SCRIPT    how the check "script" submits a job and waits for its end: "sbatch --wait --nodes=1 jobs/slurm.sh";
#             without it the script runs here, with an imitation of SLURM's commands
set -euo pipefail
site=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$site/../.." && pwd)
trainer=${TRAINER:-$source/build/trainer}
launch=${LAUNCH:-mpirun -np}
ranks=${RANKS:-2}
deck=$site/deck.toml
check=${1:?which check? $(sed -n 's/^check_\([a-z]*\)().*/\1/p' "$0" | tr '\n' ' ')}

wrong() {
  echo "failed $check: $*"
  exit 1
}

# on N WORD...: starts the words on N ranks.
on() {
  local n=$1
  shift
  # shellcheck disable=SC2086  # the launcher is several words
  $launch "$n" "$@"
}

# train N DIR [OPTION]...: the run of the deck, whose output goes to DIR.log.
train() {
  local n=$1 dir=$2 status=0
  shift 2
  on "$n" "$trainer" "$deck" --dir "$dir" "$@" >>"$dir.log" 2>&1 || status=$?
  [ "$status" = 0 ] || { tail -n 20 "$dir.log"; wrong "$dir on $n ranks ended with $status"; }
}

# The losses of all steps with all their digits.
losses() { sed -n '/"kind":"train"/s/.*"step":\([0-9]*\),"loss":\([^,}]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

# same A B: both runs have the same losses in all of their N steps.
same() {
  local count
  count=$(losses "$1" | wc -l)
  [ "$count" = "$3" ] || wrong "$1 has losses of $count steps, not of $3"
  diff <(losses "$1") <(losses "$2") >difference ||
    wrong "$2 has other losses than $1: $(sed -n '/^[<>]/p' difference | head -n 4 | tr '\n' ' ')"
}

# The program and its libraries are found on all ranks, and the deck is valid.
check_starts() {
  "$trainer" --version
  on "$ranks" "$trainer" "$deck" --validate
}

# The same bits on 1 to RANKS ranks.
check_bits() {
  local n=1
  while [ "$n" -le "$ranks" ]; do
    train "$n" "bits-$n"
    same bits-1 "bits-$n" 8
    echo "ranks=$n the same losses"
    n=$((2 * n))
  done
}

# A checkpoint is written in step 4 and read again; the steps after it are the same.
check_checkpoint() {
  train "$ranks" written
  cp -r written read
  train "$ranks" read --set 'checkpoint.resume="4"'
  grep -q 'from=checkpoint' read.log || wrong "the second start did not read a checkpoint"
  same written read 8
}

# A rank is killed without warning; the next start continues, and the run is as if nothing had happened.
check_killed() {
  local long=(--set train.total_steps=120 --set checkpoint.every_steps=10) pid
  train "$ranks" straight "${long[@]}"
  # shellcheck disable=SC2016  # the shell of each rank
  on "$ranks" sh -c 'echo $$ >>killed.pids.$(uname -n); exec "$0" "$@"' "$trainer" "$deck" --dir killed "${long[@]}" >killed.log 2>&1 &
  until grep -q 'checkpoint step=' killed.log; do
    kill -0 $! 2>/dev/null || { tail -n 20 killed.log; wrong "the run ended before it was killed"; }
    sleep 0.05
  done
  pid=$(head -n 1 "killed.pids.$(uname -n)")
  kill -KILL "$pid"
  ! wait $! || wrong "the killed run ended with 0"
  train "$ranks" killed "${long[@]}"
  grep -q 'from=checkpoint' killed.log || wrong "the second start did not read a checkpoint"
  same straight killed 120
}

selftest() {
  local status=0
  on "$ranks" "$trainer" --mode selftest --dir selftest "$@" >selftest.log 2>&1 || status=$?
  cat selftest.log
  [ "$status" = 0 ] || wrong "the selftest ended with $status"
}

# enough VALUE WHOLE SHARE UNIT WHAT: VALUE is at least this share of WHOLE.
enough() {
  awk -v v="$1" -v w="$2" -v s="$3" -v u="$4" -v t="$5" -v c="$check" 'BEGIN {
    printf "%s %.2f %s of %.2f, share=%.3f\n", t, v, u, w, v / w
    if (v < s * w) { printf "failed %s: a share of %.3f, and %s is asked for\n", c, v / w, s; exit 1 }
  }' </dev/null
}

# Products reach a share of the peak of a core: 32 operations a cycle with AVX2 (the site knows its own peak).
check_products() {
  local mhz
  mhz=$(awk -F: '/^cpu MHz/ {print $2; exit}' /proc/cpuinfo)
  selftest --json --set 'selftest.checks=["speed"]' --set run.threads=1
  local peak=${PEAK_GFLOPS:-$(awk -v m="${mhz:-2000}" 'BEGIN {print m * 32 / 1000}')}
  enough "$(sed -n 's/.*"gflops":\([0-9.]*\).*/\1/p' selftest.log)" "$peak" "${PEAK_SHARE:-0.5}" GFLOP/s products
}

# Sums over all ranks reach a share of the link between them.
check_exchange() {
  [ "$ranks" -gt 1 ] || wrong "RANKS=$ranks exchange nothing"
  selftest --set 'selftest.checks=["exchange"]'
  local best
  best=$(sed -n '/exchange world/p' selftest.log | grep -oE '[0-9.e+-]+ GB/s' | sort -g | tail -n 1)
  enough "${best% GB/s}" "${LINK_GBS:-1}" "${LINK_SHARE:-0.25}" GB/s exchange
}

# Nodes, network and disk, as jobs/README.md describes.
check_selftest() { selftest; }

# The job script is asked to stop, saves, asks to be continued, and the next part finishes.
check_script() {
  if [ -n "${SCRIPT:-}" ]; then
    # shellcheck disable=SC2086  # a command line
    (cd "$source" && $SCRIPT "$deck" --dir "$OLDPWD/script") || wrong "$SCRIPT ended with $?"
    same script script 8
    return
  fi
  local part status here=$PWD
  mkdir bin
  printf '#!/bin/sh\ntouch "%s/successor"\necho 2.site\n' "$here" >bin/qsub
  printf '#!/bin/sh\necho "    Resource_List.walltime = 01:00:00"\n' >bin/qstat
  chmod +x bin/qsub bin/qstat
  for ((part = 0; part < ranks; ++part)); do echo localhost; done >nodes
  for part in 1 2; do
    status=0
    env PATH="$here/bin:$PATH" PBS_JOBID="$part.site" PBS_O_WORKDIR="$source" PBS_NODEFILE="$here/nodes" OMP_NUM_THREADS=1 BIND=none \
      LOCAL_DIR="$here" TRAINER="$trainer" DECK="$deck" PART="$part" OPTIONS="--dir $here/script --set train.total_steps=120" \
      bash "$source/jobs/pbs.sh" >>"script-$part.log" 2>&1 &
    if [ "$part" = 1 ]; then
      until grep -q '^step=12 ' script-1.log; do
        kill -0 $! 2>/dev/null || { cat script-1.log; wrong "the script ended too early"; }
        sleep 0.05
      done
      kill -USR1 $!
    fi
    wait $! || status=$?
    if [ "$part" = 1 ] && { [ "$status" != 75 ] || [ ! -e successor ]; }; then
      tail -n 20 script-1.log
      wrong "asked to stop, the script ended with $status and $([ -e successor ] || echo no) successor"
    fi
  done
  [ "$status" = 0 ] || { tail -n 20 script-2.log; wrong "the second part ended with $status"; }
  [ "$(losses script | wc -l)" = 120 ] || wrong "losses of some steps are missing"
}

declare -F "check_$check" >/dev/null || wrong "there is no such check"
"check_$check"
echo "passed $check"
