# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Functions for slurm.sh and pbs.sh, which source this file. Results are in options, words, binding,
# passed_on and rc.
# shellcheck disable=SC2034  # slurm.sh and pbs.sh use the results

# shellcheck source=jobs/launcher.sh
. "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

wrong() {
  echo "error: $*" >&2
  exit 2
}

# check_number NAME VALUE LEAST: VALUE is a whole number, without a sign or leading zeros, and at
# least LEAST.
check_number() {
  [[ $2 =~ ^(0|[1-9][0-9]{0,8})$ && $2 -ge $3 ]] || wrong "$1=$2; it is a whole number, $3 or more"
}

# split_words TEXT: splits the text into options. Quotes and backslashes hold a word together, as in
# a shell, and nothing is expanded.
split_words() {
  local text=$1
  options=()
  [[ $text =~ [^[:space:]] ]] || return 0
  xargs printf '' <<< "$text" >/dev/null 2>&1 || wrong "a quote in '$text' is not closed"
  mapfile -d '' -t options < <(xargs printf '%s\0' <<< "$text")
}

run='' asked='' asking=''
# pass_on: asks mpirun to stop, as soon as it runs.
pass_on() {
  asked=1
  if [ -n "$run" ] && [ -z "$asking" ]; then
    ask_to_stop "$run" </dev/null >/dev/null 2>&1 &
    asking=$!
  fi
}

# ask_to_stop PROCESS: sends USR1 again and again, at growing intervals. mpirun loses a USR1 that
# arrives before it has started its ranks. The trainer acts on the first one that reaches it.
ask_to_stop() {
  local pause
  trap - USR1
  for pause in 1 1 2 4 8 16 32 64 128; do
    kill -USR1 "$1" || return 0
    sleep "$pause"
  done
}

# The scheduler's warning (USR1) may come at any time from now on, and would end bash without this
# trap. mpirun gets USR1: it passes the signal on to all ranks and waits for them. It does not get
# TERM, because it would kill the ranks 2 s later.
trap pass_on USR1
# QUIT asks the ranks for the stacks of all threads. mpirun passes no QUIT on, but ALRM.
trap '[ -z "$run" ] || kill -ALRM "$run"' QUIT
# A TERM reaches mpirun as well, which then ends within seconds. This script survives it to clean
# up.
trap : TERM

# fill_in INDEX WORD...: in an array job, replaces %a in the deck and its options by the task's
# index.
fill_in() {
  local index=$1 given=${*:2}
  words=("${@:2}")
  if [ -n "$index" ]; then
    words=("${words[@]//%a/$index}")
    [ "${words[*]}" != "$given" ] ||
      wrong "all tasks of this array would train the same in one directory; %a stands for the task's number, for example" \
        "inputs/run.toml --set run.seed=%a --dir runs/seed-%a, or inputs/sweep-%a.toml"
  elif [[ $given == *%a* ]]; then
    wrong "%a in '$given' is the task's number in an array job, but this job is not an array job"
  fi
}

check_program() {
  [ -x "$1" ] || wrong "no program $1 in $PWD: build it, submit from the project's folder, or set TRAINER=/path/to/trainer"
}

# check_hosts: ends a PBS job that has no list of hosts to start ranks on. PBS writes none for shells
# on a node that are no job's, and sites differ about interactive jobs.
check_hosts() {
  local way="PBS lists the hosts of a job in this file; submit the script with qsub"
  [ -n "${PBS_NODEFILE:-}" ] || wrong "PBS_NODEFILE is not set: $way"
  if [ ! -f "$PBS_NODEFILE" ] || [ ! -r "$PBS_NODEFILE" ]; then wrong "PBS_NODEFILE=$PBS_NODEFILE is not a file that can be read: $way"; fi
  grep -q '[^[:space:]]' "$PBS_NODEFILE" || wrong "PBS_NODEFILE=$PBS_NODEFILE names no host: $way"
}

# threads_of SELECT: prints the threads per rank of a PBS select: ompthreads of a chunk, or ncpus /
# mpiprocs; the smallest of all chunks, at least 1.
threads_of() {
  tr + '\n' <<< "$1" | awk -F: '{
    n["ncpus"] = n["mpiprocs"] = 1; n["ompthreads"] = 0
    for (i = 1; i <= NF; ++i) if (split($i, kv, "=") == 2) n[kv[1]] = kv[2]
    t = n["ompthreads"] ? n["ompthreads"] : int(n["ncpus"] / (n["mpiprocs"] ? n["mpiprocs"] : 1))
    if (NR == 1 || t < least) least = t
  } END { print least < 1 ? 1 : least }'
}

# on_each_node NODES [launcher's options] -- COMMAND...: runs the command once on every node. A launcher
# may hang before it starts anything, which must not cost the whole job: after 300 s it is tried once more.
on_each_node() {
  local nodes=$1 hosts=() each
  shift
  while [ "$1" != -- ]; do hosts+=("$1"); shift; done
  shift
  read -r -a each <<< "$(one_per_node "$nodes")"
  if [ "$nodes" = 1 ]; then "$@"; return; fi
  local try
  for try in 1 2; do
    timeout -k 10 300 "${launcher[@]}" "${hosts[@]}" "${each[@]}" "$@" && return
    case $? in 124 | 137) echo "${launcher[0]} did not end within 300 s on $nodes nodes (try $try of 2): $*" >&2 ;; *) return 1 ;; esac
  done
  return 1
}

# make_tmpdir JOB NODES [launcher's options]: makes a directory of this job on every node's own disk
# (LOCAL_DIR, or /tmp) and sets TMPDIR to it, for decks with stage_dir = "$TMPDIR". Call
# remove_tmpdir at the end. A TMPDIR whose name contains the job's number was made by the site, and
# is kept.
made_tmpdir='' tmpdir_before=''
make_tmpdir() {
  local job=$1 dir
  pass_variable TMPDIR
  if [[ ${TMPDIR:-} =~ (^|[^0-9])"${job%%[!0-9]*}"([^0-9]|$) ]] && [ -d "$TMPDIR" ]; then
    export TMPDIR
    return
  fi
  dir=${LOCAL_DIR:-/tmp}/trainer-$(id -un)-$job
  [ "${dir:0:1}" = / ] || wrong "LOCAL_DIR=$LOCAL_DIR; it must be the absolute path of a directory on the nodes' own disks"
  # Another user may own a directory of this name: all users share /tmp.
  # shellcheck disable=SC2016  # the inner shell's $1
  on_each_node "${@:2}" -- sh -c 'mkdir -p -m 700 "$1" && test -O "$1"' sh "$dir" ||
    wrong "cannot make $dir on every node; set LOCAL_DIR to a directory on the nodes' own disks"
  made_tmpdir=$dir
  tmpdir_before=${TMPDIR:-}
  export TMPDIR=$dir
}

# remove_tmpdir NODES [launcher's options]: restores TMPDIR and removes the directory. A successor must
# not inherit the name, because SLURM would make the directory again.
remove_tmpdir() {
  [ -n "$made_tmpdir" ] || return 0
  if [ -n "$tmpdir_before" ]; then TMPDIR=$tmpdir_before; else unset TMPDIR; fi
  # A process that has not ended yet may still write there. A signal to the whole job must not end rm.
  # shellcheck disable=SC2016  # the inner shell's $1
  (trap '' TERM USR1 HUP
    on_each_node "$@" -- sh -c 'for try in 1 2 3 4 5; do rm -rf -- "$1" 2>/dev/null; [ -e "$1" ] || exit 0; sleep 1; done; rm -rf -- "$1"' \
      sh "$made_tmpdir") || echo "warning: $made_tmpdir could not be removed on every node" >&2
}

# Prints the system, programs, libraries, limits and variables of this job, for users who must
# repeat it or find out why it is slow. Leaves out variables whose names look like those of secrets.
describe_environment() {
  echo "--- environment"
  echo "system    $(uname -srm), $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release 2>/dev/null)"
  echo "processor $(nproc --all) x$(sed -n 's/^model name.*://p;T;q' /proc/cpuinfo)"
  if command -v nvidia-smi >/dev/null; then nvidia-smi -L | sed 's/^/device    /'; fi
  echo "modules   ${LOADEDMODULES:-none}"
  echo "mpirun    $(command -v "${launcher[0]}"): $launcher_version"
  echo "trainer   $1 sha256=$(sha256sum "$1" | cut -c 1-16) source=$(git describe --always --dirty 2>/dev/null || echo unknown)"
  ldd "$1" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | xargs -r readlink -f | sort |
    sed -n '/\/lib\(mpi\|open-\|pmix\|ucp\|hdf5\|dnnl\|gomp\|cu\|nccl\|stdc++\|c\.so\|turbojpeg\|sentencepiece\)/s/^/library   /p'
  echo "limits    $(ulimit -a | sed -n 's/^\(.*[^ ]\)  *(.*) \(.*\)$/\1 \2/p' | tr '\n' ';')"
  env |
    grep -E -e '^(SLURM|PBS|OMPI|PMIX|UCX|FI|HWLOC|OMP|GOMP|KMP|ONEDNN|DNNL|HDF5|ROMIO|MALLOC|CUDA|CUBLAS|CUDNN|NVIDIA|NCCL)_' \
      -e '^(MPICH|MPIR_CVAR|I_MPI)_' -e '^(PATH|LD_LIBRARY_PATH|LD_PRELOAD|TMPDIR|NCPUS|TRAINER_MESH_SELECTOR)=' |
    grep -viE '^[^=]*(cookie|token|secret|passw|jwt|key)' | sort
  echo "---"
}

# is_rank PROCESS: true for a rank of Open MPI. Other children of mpirun start daemons on other nodes and end.
is_rank() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK='; }

# end_if_stuck PROCESS: prints "stuck" and kills a launcher that is still there stuck_s seconds after its
# last rank. Open MPI 4's mpirun may hang at its own end when a rank dies while it connects (openpmix issue 1233).
# A launcher that never had a rank on this node is left alone: its ranks are on other nodes.
stuck_s=120
end_if_stuck() {
  local pause=0.5 had='' since=$SECONDS nap children child state
  trap - TERM QUIT
  trap '' USR1 HUP
  exec {nap}<> <(:)  # never has data, so that `read` is a sleep without a process
  while kill -0 "$1" 2>/dev/null; do
    children=$(ps -o pid=,stat= --ppid "$1" | sed '/Z/d')
    while [ -z "$had" ] && read -r child state; do
      if [ -n "$state" ] && is_rank "$child"; then had=1; fi
    done <<< "$children"
    if [ -z "$had" ] || [ -n "$children" ]; then since=$SECONDS; fi
    if [ $((SECONDS - since)) -ge "$stuck_s" ]; then
      echo stuck
      kill -KILL "$1"
      return
    fi
    [ "$SECONDS" -lt 60 ] || pause=5  # ranks that die at once must be seen, too
    read -r -t "$pause" -u "$nap"
  done
}

# run_trainer WORD...: runs the launcher with these words and sets rc to its exit code. mpirun runs in the
# background, because bash delays signals until a foreground command ends.
run_trainer() {
  if [ -n "$asked" ]; then
    echo "asked to stop before the start"
    rc=75
    return
  fi
  # mpirun's stderr goes through a filter, which ignores the signals that end the other processes.
  local err filter told guard='' out=1 marks='' marking='' note=()
  # Launchers may return a wrong code. The mpiexec of MPICH 4 may return 0 without a word when a rank is killed, or ends with 75.
  # Open MPI 4 may lose track of a rank that ends well, which then has "PID 0" (ompi issue 7833). So the code is noted with which
  # a run that has begun says that it is done.
  if [ "$launcher_kind" != srun ] && marks=$(mktemp -d); then
    note=(-e "/exited due to process rank [0-9]* with PID 0 on/w $marks/lost")
    exec {out}> >(trap '' TERM INT HUP USR1 QUIT; exec sed -u -e "/^start  *step=/w $marks/begun" -e "/^done  /w $marks/done")
    marking=$!
  fi
  exec {err}> >(trap '' TERM INT HUP USR1 QUIT; exec sed -u -e "$ORDERLY" "${note[@]}" >&2)
  filter=$!
  "${launcher[@]}" "$@" >&"$out" 2>&"$err" {err}>&- & run=$!
  # The warning may have come after mpirun's start and before run was set.
  if [ -n "$asked" ]; then pass_on; fi
  if [ "$launcher_kind" = openmpi ]; then
    exec {told}< <(end_if_stuck "$run" </dev/null 2>/dev/null {err}>&-)
    guard=$!
  fi
  exec {err}>&-
  if [ -n "$marking" ]; then exec {out}>&-; fi
  # A signal ends `wait` early with 128 + its number. Wait again while mpirun lives, and once more
  # for its exit code.
  while :; do
    wait "$run"; rc=$?
    [ "$rc" -gt 128 ] && kill -0 "$run" 2>/dev/null && continue
    [ "$rc" -gt 128 ] && { wait "$run"; rc=$?; }
    break
  done
  run=''
  if [ -n "$asking" ]; then kill "$asking" 2>/dev/null; fi
  if [ -n "$guard" ]; then
    kill "$guard" 2>/dev/null
    if read -r -u "$told"; then
      echo "${launcher[0]} did not end within $stuck_s s after its ranks, and was killed" >&2
      if [ -n "$asked" ]; then rc=75; fi  # the ranks ended because they were asked to
    fi
    exec {told}<&-
  fi
  # Wait for mpirun's last lines, but not forever: a helper process that survives may keep the
  # filters open.
  for _ in {1..30}; do kill -0 "$filter" 2>/dev/null || { [ -n "$marking" ] && kill -0 "$marking" 2>/dev/null; } || break; sleep 0.1; done
  if [ -n "$marking" ]; then
    local said
    said=$(sed -n 's/^done  *exit=\([0-9]*\)$/\1/p' "$marks/done" 2>/dev/null | tail -n 1)
    if [ "$launcher_kind:$rc" = hydra:0 ] && [ -s "$marks/begun" ] && [ "$said" != 0 ]; then
      local how="did not say that it is done: a rank was killed"
      [ -z "$said" ] || how="ended with $said"
      echo "${launcher[0]} returned 0, but the run $how" >&2
      rc=${said:-137}
    elif [ "$rc" = 1 ] && [ -s "$marks/lost" ] && [ -n "$said" ]; then
      echo "${launcher[0]} lost track of a rank that had ended; the run said that it ended with $said" >&2
      rc=$said
    fi
    rm -rf -- "$marks"
  fi
  # The warning itself killed a trainer that had no handler yet. Nothing is lost.
  if [ -n "$asked" ] && died_of_request "$rc"; then
    echo "asked to stop while starting"
    rc=75
  fi
}

# may_continue PART MAX_PARTS: only 75 means "stopped early with a checkpoint, continue later".
# Errors would come again, unless a bad node is to blame (jobs/spares.sh sets `lost`). 8 asks not to
# be continued: stopped by hand, out of budget, or a time limit that leaves no room for a step.
lost=''
may_continue() {
  [ "$rc" = 75 ] || [ -n "$lost" ] || return 1
  [ "$1" -lt "$2" ] && return 0
  echo "not continued: part $1 of at most $2 (MAX_PARTS); the last checkpoint is good, submit again to continue" >&2
  return 1
}
