# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages that this project needs, and the environment of its MPI runs. tools/test,
# tools/quickstart and others source this file.
# shellcheck source=tools/launcher.sh
. "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

TRAINER_PACKAGES=(
  # build
  g++ cmake ninja-build ccache git pkg-config
  # message passing, HDF5 over it, configuration, kernels, tokenizer
  openmpi-bin libopenmpi-dev libhdf5-openmpi-dev hdf5-tools libtomlplusplus-dev libdnnl-dev libsentencepiece-dev sentencepiece
  # images and archives
  libpng-dev libturbojpeg0-dev libwebp-dev libgif-dev libarchive-dev liblzf-dev
  # small libraries: logging, command line, hashing, JSON, tests
  libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev libssl-dev nlohmann-json3-dev libgtest-dev
  # tools
  python3 python3-h5py python3-xxhash python3-numpy python3-matplotlib python3-pil python3-fonttools python3-sentencepiece
  # sources of the emoji data set
  fonts-noto-color-emoji unicode-data unicode-cldr-core
)

# Packages for some tests, which are skipped without them: SLURM for jobs/slurm.sh (a test starts
# and stops it), the checker of scripts, Clang with libFuzzer for tools/fuzz and for its warnings,
# the formatter of the sources. "A|B" is the first of them that the system offers; "A|" is A or
# nothing, because only one version of the formatter is right and not every system has Chromium or ONNX.
TRAINER_TEST_PACKAGES=(slurm-wlm munge shellcheck "clang-14|clang-19" "libclang-rt-14-dev|libclang-rt-19-dev"
                       "libomp-14-dev|libomp-19-dev" "clang-format-14|" "chromium|" mmdebstrap graphviz
                       libdeflate-tools "python3-onnx|")

# Prints the given packages that are not installed. Asks dpkg, and apt's lists about choices, so it
# needs neither rights nor a network.
missing_packages() {
  local choices package found
  for choices in "$@"; do
    found=
    for package in ${choices//|/ }; do
      [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ] || found=installed
    done
    [ -z "$found" ] || continue
    if [[ $choices = *"|"* ]]; then
      for package in ${choices//|/ }; do
        [ -n "$found" ] || ! apt-cache show "$package" >/dev/null 2>&1 || found=$package
      done
      [ -n "$found" ] || [[ $choices = *"|" ]] || found=${choices%%"|"*}
    else
      found=$choices
    fi
    [ -z "$found" ] || printf '%s\n' "$found"
  done
}

install_packages() { install_listed "${TRAINER_PACKAGES[@]}"; }

install_test_packages() {
  install_listed "${TRAINER_TEST_PACKAGES[@]}" || echo "warning: tests that need ${TRAINER_TEST_PACKAGES[*]} will be skipped" >&2
}

# Installs the missing ones of the given packages. Does nothing, and needs no rights, if none is
# missing.
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
  # apt waits for another apt on the machine instead of failing at its lock.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  if ! "${apt[@]}" update -qq; then
    echo "error: apt-get update failed: is there a network, and is /etc/apt/sources.list right?" >&2
    return 1
  fi
  read -r -d '' -a missing <<< "$(missing_packages "$@")" || true  # now apt knows what the system offers
  if ! "${apt[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "error: apt-get install failed (its message is above); wanted: ${missing[*]}" >&2
    return 1
  fi
}

# Prints the number of cores that this process may use. nproc alone would print OMP_NUM_THREADS.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Configures a preset, unless its folder is configured already, and builds it. A build that is
# configured keeps its settings. Options go to the build: "--target trainer" leaves out the tests.
build_preset() {
  local folder=build
  [ "$1" = release ] || folder=build/$1
  use_ccache
  [ -f "$folder/build.ninja" ] || cmake --preset "$1" || return
  cmake --build "$folder" --parallel "$(cores)" "${@:2}"
}

# The files of ccache are at their usual place unless CCACHE_DIR names another one.
use_ccache() {
  export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ccache}
}
