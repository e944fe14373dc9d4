# shellcheck shell=bash
# Sourced by slurm.sh and pbs.sh: what is the same under every scheduler. Results are in options, words, binding, passed_on and rc.
# shellcheck disable=SC2034  # they are used there

wrong() {
  echo "error: $*" >&2
  exit 2
}

# check_number NAME VALUE LEAST: VALUE is a whole number, without a sign or leading zeros, and at least LEAST.
check_number() {
  [[ $2 =~ ^(0|[1-9][0-9]{0,8})$ && $2 -ge $3 ]] || wrong "$1=$2; it is a whole number, $3 or more"
}

# split_words TEXT: its words, in options. Quotes and backslashes hold a word together, as in a shell; nothing is expanded.
split_words() {
  local text=$1
  options=()
  [[ $text =~ [^[:space:]] ]] || return 0
  xargs printf '' <<< "$text" >/dev/null 2>&1 || wrong "a quote in '$text' is not closed"
  mapfile -d '' -t options < <(xargs printf '%s\0' <<< "$text")
}

# The lead may come at any time from now on, and bash would die of it. USR1, not TERM, goes to mpirun: it passes USR1 on to all ranks
# and waits for them, but kills them 2 s after a TERM.
run='' asked='' asking=''
trap 'asked=1; if [ -n "$run" ] && [ -z "$asking" ]; then ask_to_stop "$run" </dev/null >/dev/null 2>&1 & asking=$!; fi' USR1
# A TERM reaches mpirun as well, which then ends within seconds; this script outlives it to clean up.
trap : TERM

# ask_to_stop PROCESS: mpirun passes USR1 on only to ranks that it has started. One that comes while it still looks for hosts is lost,
# so it is sent again and again, ever less often; the trainer takes the first one.
ask_to_stop() {
  local pause
  trap - USR1
  for pause in 1 1 2 4 8 16 32 64 128; do
    kill -USR1 "$1" || return 0
    sleep "$pause"
  done
}

# fill_in INDEX WORD...: in an array job %a in the deck and its options stands for the task's index: a deck or a seed for each task.
fill_in() {
  local index=$1 given=${*:2}
  words=("${@:2}")
  if [ -n "$index" ]; then
    words=("${words[@]//%a/$index}")
    [ "${words[*]}" != "$given" ] ||
      wrong "all tasks of this array would train the same in one directory; %a stands for the task's number, for example" \
        "inputs/run.toml --set run.seed=%a --dir runs/seed-%a, or inputs/sweep-%a.toml"
  elif [[ $given == *%a* ]]; then
    wrong "%a in '$given' is the task's number in an array job, and this is none"
  fi
}

check_program() {
  [ -x "$1" ] || wrong "no program $1 in $PWD: build it, submit from the project's folder, or set TRAINER=/path/to/trainer"
}

# threads_of SELECT: threads per rank that a select of PBS means: ompthreads of a chunk, or ncpus / mpiprocs; the smallest of all
# chunks, at least 1.
threads_of() {
  tr + '\n' <<< "$1" | awk -F: '{
    n["ncpus"] = n["mpiprocs"] = 1; n["ompthreads"] = 0
    for (i = 1; i <= NF; ++i) if (split($i, kv, "=") == 2) n[kv[1]] = kv[2]
    t = n["ompthreads"] ? n["ompthreads"] : int(n["ncpus"] / (n["mpiprocs"] ? n["mpiprocs"] : 1))
    if (NR == 1 || t < least) least = t
  } END { print least < 1 ? 1 : least }'
}

# bind_ranks HOW THREADS. Without it a rank with threads is bound to a single core, and its threads share it.
bind_ranks() {
  case $1 in
    core)
      binding=(--map-by "slot:PE=$2" --bind-to core)
      # And each of its threads to one of them, not to a hardware thread: a step takes up to a tenth less.
      export OMP_PROC_BIND=${OMP_PROC_BIND:-true} OMP_PLACES=${OMP_PLACES:-cores}
      ;;
    none) binding=(--bind-to none) ;;
    *) wrong "BIND=$1; it is core or none" ;;
  esac
  export OMP_NUM_THREADS=$2
  # Where mpirun starts ranks by ssh, they get only the variables that are named.
  passed_on=(-x OMP_NUM_THREADS)
  local name
  for name in LD_LIBRARY_PATH OMP_PROC_BIND OMP_PLACES TRAINER_MESH_SELECTOR; do
    if [ -n "${!name:-}" ]; then passed_on+=(-x "$name"); fi
  done
}

# on_each_node NODES [mpirun options] -- COMMAND...
on_each_node() {
  local nodes=$1 hosts=()
  shift
  while [ "$1" != -- ]; do hosts+=("$1"); shift; done
  shift
  if [ "$nodes" = 1 ]; then "$@"; else mpirun "${hosts[@]}" --map-by ppr:1:node --bind-to none "$@"; fi
}

# make_tmpdir JOB NODES [mpirun options]: TMPDIR becomes a directory of this job alone on every node's own disk (LOCAL_DIR, or /tmp), for
# decks that say stage_dir = "$TMPDIR"; remove_tmpdir at the end. A site that makes one for each job has its number in the name.
made_tmpdir='' tmpdir_before=''
make_tmpdir() {
  local job=$1 dir
  passed_on+=(-x TMPDIR)
  if [[ ${TMPDIR:-} =~ (^|[^0-9])"${job%%[!0-9]*}"([^0-9]|$) ]] && [ -d "$TMPDIR" ]; then
    export TMPDIR
    return
  fi
  dir=${LOCAL_DIR:-/tmp}/trainer-$(id -un)-$job
  [ "${dir:0:1}" = / ] || wrong "LOCAL_DIR=$LOCAL_DIR; it is a directory on the nodes' own disks, from / on"
  # Somebody else may have made it: /tmp is everybody's.
  # shellcheck disable=SC2016  # the inner shell's $1
  on_each_node "${@:2}" -- sh -c 'mkdir -p -m 700 "$1" && test -O "$1"' sh "$dir" ||
    wrong "cannot make $dir on every node; set LOCAL_DIR to a directory on the nodes' own disks"
  made_tmpdir=$dir
  tmpdir_before=${TMPDIR:-}
  export TMPDIR=$dir
}

# remove_tmpdir NODES [mpirun options]. A successor must not inherit the name: SLURM would make the directory again.
remove_tmpdir() {
  [ -n "$made_tmpdir" ] || return 0
  if [ -n "$tmpdir_before" ]; then TMPDIR=$tmpdir_before; else unset TMPDIR; fi
  on_each_node "$@" -- rm -rf -- "$made_tmpdir"
}

# What this job runs with, for whoever must repeat it or find out why it is slow. Nothing that looks like a secret.
describe_environment() {
  echo "--- environment"
  echo "system    $(uname -srm), $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release 2>/dev/null)"
  echo "processor $(nproc --all) x$(sed -n 's/^model name.*://p;T;q' /proc/cpuinfo)"
  if command -v nvidia-smi >/dev/null; then nvidia-smi -L | sed 's/^/device    /'; fi
  echo "modules   ${LOADEDMODULES:-none}"
  echo "mpirun    $(command -v mpirun): $(mpirun --version 2>/dev/null | head -n 1)"
  echo "trainer   $1 sha256=$(sha256sum "$1" | cut -c 1-16) source=$(git describe --always --dirty 2>/dev/null || echo unknown)"
  ldd "$1" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | xargs -r readlink -f | sort |
    sed -n '/\/lib\(mpi\|open-\|pmix\|ucp\|hdf5\|dnnl\|gomp\|cu\|nccl\|stdc++\|c\.so\|turbojpeg\|sentencepiece\)/s/^/library   /p'
  echo "limits    $(ulimit -a | sed -n 's/^\(.*[^ ]\)  *(.*) \(.*\)$/\1 \2/p' | tr '\n' ';')"
  env |
    grep -E -e '^(SLURM|PBS|OMPI|PMIX|UCX|FI|HWLOC|OMP|GOMP|KMP|ONEDNN|DNNL|HDF5|ROMIO|MALLOC|CUDA|CUBLAS|CUDNN|NVIDIA|NCCL)_' \
      -e '^(PATH|LD_LIBRARY_PATH|LD_PRELOAD|TMPDIR|NCPUS|TRAINER_MESH_SELECTOR)=' |
    grep -viE '^[^=]*(cookie|token|secret|passw|jwt|key)' | sort
  echo "---"
}

# Open MPI calls every job "aborted" that does not end with 0, also one that has saved and asks to be continued. This sed script drops
# two of its texts: the one that names 75 or 8, and the one that names no code; the line "ended with" has it.
ORDERLY='/^-\{70,\}$/ {
  :more
  N
  /\n-\{70,\}$/ !b more
  /Primary job *terminated normally, but/ d
  /exited with non-zero status.*Exit code: *\(75\|8\)\n/ d
}'

# run_trainer WORD...: mpirun with these words; its exit code in rc. In the background: in the foreground bash would keep the signal until
# it ends.
run_trainer() {
  if [ -n "$asked" ]; then
    echo "told to stop before the start"
    rc=75
    return
  fi
  # mpirun's stderr goes through a filter, which outlives the signals that end the rest.
  local err filter
  exec {err}> >(trap '' TERM INT HUP USR1; exec sed -u "$ORDERLY" >&2)
  filter=$!
  mpirun "$@" 2>&"$err" {err}>&- & run=$!
  exec {err}>&-
  # A signal ends `wait` early with 128 + its number: wait again, as long as mpirun lives, and once more for its true exit code.
  while :; do
    wait "$run"; rc=$?
    [ "$rc" -gt 128 ] && kill -0 "$run" 2>/dev/null && continue
    [ "$rc" -gt 128 ] && { wait "$run"; rc=$?; }
    break
  done
  run=''
  if [ -n "$asking" ]; then kill "$asking" 2>/dev/null; fi
  # Its last lines; a helper that was left behind may hold the filter open for ever.
  for _ in {1..30}; do kill -0 "$filter" 2>/dev/null || break; sleep 0.1; done
  # Killed by the lead itself, because it came before the trainer could listen: nothing is wrong and nothing is lost.
  if [ -n "$asked" ] && [ "$rc" = 138 ]; then
    echo "told to stop while starting"
    rc=75
  fi
}

# may_continue PART MAX_PARTS: only 75 means "stopped early with a checkpoint, go on later". Errors would come again, and 8 asks
# not to be continued: stopped by hand, out of budget, or a time limit that leaves no room for a step.
may_continue() {
  [ "$rc" = 75 ] || return 1
  [ "$1" -lt "$2" ] && return 0
  echo "not continued: part $1 of at most $2 (MAX_PARTS); the last checkpoint is good, submit again to go on" >&2
  return 1
}
