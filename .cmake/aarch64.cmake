# SPDX-License-Identifier: Apache-2.0
# Toolchain for 64-bit Arm: Debian's cross compiler, and a root directory with packages of arm64.
# tools/test --arch aarch64 makes that, and names it in the environment when it configures.
set(TRAINER_ARM64_ROOT "$ENV{TRAINER_ARM64_ROOT}" CACHE PATH "Root directory with packages of arm64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TRAINER_ARM64_ROOT)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(root ${TRAINER_ARM64_ROOT})
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig)
set(CMAKE_SYSROOT ${root})
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Libraries that are preloaded into programs of this machine are none for Arm.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${root} -U LD_PRELOAD)
set(MPIEXEC_PREFLAGS ${CMAKE_CROSSCOMPILING_EMULATOR})  # mpirun is this machine's
# mpicxx of arm64 does not run here, and the links of Debian's alternatives are missing in this root.
set(mpi ${root}/usr/lib/aarch64-linux-gnu/openmpi)
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(MPI_CXX_HEADER_DIR ${mpi}/include)
set(MPI_CXX_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY ${mpi}/lib/libmpi.so)
