# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Chooses the options of the launcher: mpirun of Open MPI 4 and 5, mpiexec of MPICH and of Intel MPI (hydra), or srun. common.sh
# sources this file. Results are in launcher, launcher_kind, binding, passed_on and on_hosts.
#   LAUNCHER   the program that starts ranks (mpirun), for example /opt/mpich/bin/mpiexec, or srun
#   SRUN_MPI   pmix (for Open MPI) or pmi2 (for MPICH and Intel MPI)
# shellcheck disable=SC2034  # other scripts use the results

launcher=(mpirun) launcher_kind=openmpi launcher_version=''

# choose_launcher: sets launcher, launcher_kind (openmpi, hydra or srun) and launcher_version.
choose_launcher() {
  local name=${LAUNCHER:-mpirun} text
  launcher=("$name")
  text=$("$name" --version 2>/dev/null </dev/null)
  launcher_version=${text%%$'\n'*}
  case ${name##*/}:$text in
    srun:*)
      case ${SRUN_MPI:-pmix} in
        pmix | pmi2) ;;
        *) wrong "SRUN_MPI=$SRUN_MPI; it is pmix or pmi2" ;;
      esac
      launcher_kind=srun
      # Without the second option the other ranks would wait for one that died.
      launcher+=(--mpi="${SRUN_MPI:-pmix}" --kill-on-bad-exit=1)
      ;;
    *:*HYDRA* | *:*"Intel(R) MPI"*)
      launcher_kind=hydra
      launcher_version+=$(sed -n 's/^ *Version: *\(.*\)/ \1/p' <<< "$text" | head -n 1)
      ;;
    *) launcher_kind=openmpi ;;
  esac
}

# bind_ranks HOW THREADS. Without binding options Open MPI binds a rank to a single core, and its threads
# share that core.
bind_ranks() {
  case $1:$launcher_kind in
    core:openmpi) binding=(--map-by "slot:PE=$2" --bind-to core) ;;
    core:hydra) binding=(-bind-to "core:$2") ;;
    core:srun) binding=(--cpus-per-task="$2" --cpu-bind=cores) ;;
    none:openmpi) binding=(--bind-to none) ;;
    none:hydra) binding=(-bind-to none) ;;
    none:srun) binding=(--cpu-bind=none) ;;
    *) wrong "BIND=$1; it is core or none" ;;
  esac
  # Each thread is bound to a core, not to a hardware thread. Steps then take up to a tenth less
  # time.
  if [ "$1" = core ]; then export OMP_PROC_BIND=${OMP_PROC_BIND:-true} OMP_PLACES=${OMP_PLACES:-cores}; fi
  export OMP_NUM_THREADS=$2
  passed_on=()
  pass_variable OMP_NUM_THREADS
  local name
  for name in LD_LIBRARY_PATH OMP_PROC_BIND OMP_PLACES TRAINER_MESH_SELECTOR; do
    if [ -n "${!name:-}" ]; then pass_variable "$name"; fi
  done
}

# pass_variable NAME: ranks on other nodes get this variable. Open MPI's get only those that are named if
# it starts them by ssh; ranks of others get all.
pass_variable() {
  if [ "$launcher_kind" = openmpi ]; then passed_on+=(-x "$1"); fi
}

# hosts_option LIST RANKS: sets on_hosts to the options for so many ranks on the hosts HOST:RANKS,HOST:RANKS...
hosts_option() {
  local names
  case $launcher_kind in
    openmpi) on_hosts=(--host "$1" -np "$2") ;;
    hydra) on_hosts=(-hosts "$1" -n "$2") ;;
    srun)
      IFS=, read -r -a names <<< "$1"
      on_hosts=(--nodelist="$(printf '%s\n' "${names[@]%:*}" | paste -s -d ,)" --nodes="${#names[@]}" --ntasks="$2")
      ;;
  esac
}

# one_per_node NODES: prints the options for one process on every node, which may use all of its cores.
one_per_node() {
  case $launcher_kind in
    openmpi) echo --map-by ppr:1:node --bind-to none ;;
    hydra) echo -ppn 1 -n "$1" -bind-to none ;;
    srun) echo --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --cpu-bind=none ;;
  esac
}

# died_of_request CODE: true if the launcher's exit code says that USR1 itself killed a rank.
died_of_request() { [ "$1" = 138 ] || { [ "$launcher_kind" = hydra ] && [ "$1" = 10 ]; }; }

# Open MPI calls every job "aborted" that does not end with 0, even one that saved and asks to be
# continued. This sed script drops two of its texts: the one that names 75 or 8, and the one that
# names no code. The line "ended with" has the code.
ORDERLY='/^-\{70,\}$/ {
  :more
  N
  /\n-\{70,\}$/ !b more
  /Primary job *terminated normally, but/ d
  /exited with non-zero status.*Exit code: *\(75\|8\)\n/ d
}'
