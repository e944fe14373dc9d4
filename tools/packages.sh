# shellcheck shell=bash
# Sourced by tools/test and tools/quickstart: the Debian packages this project needs, and the environment its MPI runs need.

TRAINER_PACKAGES=(
  # build
  g++ cmake ninja-build ccache git pkg-config
  # message passing, HDF5 over it, configuration, kernels, tokenizer
  openmpi-bin libopenmpi-dev libhdf5-openmpi-dev hdf5-tools libtomlplusplus-dev libdnnl-dev libsentencepiece-dev sentencepiece
  # images and archives
  libpng-dev libturbojpeg0-dev libwebp-dev libgif-dev libarchive-dev
  # small libraries: logging, command line, hashing, JSON, tests
  libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev libssl-dev nlohmann-json3-dev libgtest-dev
  # tools
  python3 python3-h5py python3-xxhash python3-numpy python3-matplotlib python3-pil python3-fonttools python3-sentencepiece
  # what the emoji data set is made of
  fonts-noto-color-emoji unicode-data unicode-cldr-core
)

# Only for tests, which are skipped without them: a SLURM for jobs/slurm.sh (a test starts and stops it itself), the checker of scripts,
# the compiler with libFuzzer for tools/fuzz and for what Clang says of the sources.
TRAINER_TEST_PACKAGES=(slurm-wlm munge shellcheck clang-14 libclang-rt-14-dev libomp-14-dev)

# Prints which of the given packages are not installed. Asks dpkg only, so it needs neither rights nor a network.
missing_packages() {
  local package status
  for package in "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
    [ "$status" = installed ] || printf '%s\n' "$package"
  done
}

install_packages() { install_listed "${TRAINER_PACKAGES[@]}"; }

install_test_packages() {
  install_listed "${TRAINER_TEST_PACKAGES[@]}" || echo "warning: tests that need ${TRAINER_TEST_PACKAGES[*]} will be skipped" >&2
}

# Installs what is missing of the given packages; does nothing, and needs nobody's permission, when all is there.
install_listed() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "error: this script installs Debian packages and found no apt-get. On another system provide the equivalents of:" >&2
    echo "       $*" >&2
    return 1
  fi
  local missing as_root=()
  # Not < <(...): a bare chroot without /proc has no /dev/fd.
  read -r -d '' -a missing <<< "$(missing_packages "$@")" || true
  if [ "${#missing[@]}" = 0 ]; then
    echo "packages all $# installed"
    return 0
  fi
  echo "packages installing ${#missing[@]}: ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "error: not root and no sudo here. Ask root to run, then start this again:" >&2
      echo "       apt-get install --no-install-recommends ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  # Another apt on the machine is waited for instead of failing at its lock.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  if ! "${apt[@]}" update -qq; then
    echo "error: apt-get update failed: is there a network, and is /etc/apt/sources.list right?" >&2
    return 1
  fi
  if ! "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "error: apt-get install failed (its message is above); wanted: ${missing[*]}" >&2
    return 1
  fi
}

# What Open MPI needs to run everywhere we start it: as root in a container, more ranks than cores, several jobs on one machine.
# A value that the user has set stays. Cluster jobs do not use this (jobs/ has its own, and wants binding).
mpi_environment() {
  export OMPI_ALLOW_RUN_AS_ROOT=${OMPI_ALLOW_RUN_AS_ROOT-1} OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM-1}
  export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe-1}
  # Waiting ranks give way: with more ranks than cores a spinning one would hold up those that still compute.
  export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle-1}
  # Every job would bind its ranks to cores 0, 1, ...: two tests at once would share them, and threads of a rank one core.
  export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy-none}
  # Reading another process's memory directly (CMA) is forbidden in many containers; copying twice always works.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism-none}
  # Without /sys, as in a bare chroot, hwloc complains once per process; it finds the cores another way.
  export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS-2}
  # The ranks fill the cores. Whoever wants threads in a rank asks for them.
  export OMP_NUM_THREADS=${OMP_NUM_THREADS-1}
  # Threads that wait give way as well.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY-passive}
}

# Cores that this process may use; nproc alone would answer OMP_NUM_THREADS.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Configures and builds into build/; options go to the build: "--target trainer" leaves out the tests.
build_release() { build_preset release "$@"; }

# ccache keeps its files where it always does unless CCACHE_DIR says otherwise.
build_preset() {
  export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ccache}
  export CCACHE_DEPEND=1  # what it has not seen goes through the preprocessor once, not twice
  cmake --preset "$1" && cmake --build --preset "$1" --parallel "$(cores)" "${@:2}"
}
