# SPDX-License-Identifier: Apache-2.0
# The libraries that each folder links. Only that folder may include their headers. The versions are
# the oldest ones with everything that is used here.
include(Require)
# Libraries that only some files and decks need. A build without one is asked for by name, so that nobody
# loses a format because a module was not loaded.
set(TRAINER_OPTIONAL gif webp sentencepiece archive lzf)
set(TRAINER_WITHOUT "" CACHE STRING "Libraries to build without, separated by ;: ${TRAINER_OPTIONAL}")
foreach(name IN LISTS TRAINER_WITHOUT)
  if(NOT name IN_LIST TRAINER_OPTIONAL)
    message(FATAL_ERROR "TRAINER_WITHOUT names ${name}; it may name ${TRAINER_OPTIONAL}")
  endif()
endforeach()
if(TRAINER_WITHOUT)
  message(STATUS "Built without: ${TRAINER_WITHOUT} (TRAINER_WITHOUT); no tests, which need all of them")
  set(TRAINER_TESTS OFF)
endif()
find_package(Threads REQUIRED)

if(NOT TRAINER_FUZZ)
  trainer_require(NAME OpenMP WANTED "the compiler's own (Clang needs the libomp of its version)" PACKAGE OpenMP OPTIONS COMPONENTS CXX
                  APT libomp-dev DNF libomp-devel SPACK llvm-openmp CONDA llvm-openmp)
endif()
include(Mpi)

trainer_require(NAME fmt WANTED "8.0 or newer" PACKAGE fmt VERSION 8.0 OPTIONS CONFIG APT libfmt-dev DNF fmt-devel SPACK fmt CONDA fmt)
trainer_require(NAME spdlog WANTED "1.9 or newer" PACKAGE spdlog VERSION 1.9 OPTIONS CONFIG
                APT libspdlog-dev DNF spdlog-devel SPACK spdlog CONDA spdlog)
trainer_require(NAME toml++ WANTED "3.0 or newer" PACKAGE tomlplusplus VERSION 3.0 OPTIONS CONFIG
                APT libtomlplusplus-dev DNF tomlplusplus-devel SPACK tomlplusplus CONDA tomlplusplus)
trainer_require(NAME "JSON for Modern C++" WANTED "3.9 or newer" PACKAGE nlohmann_json VERSION 3.9 OPTIONS CONFIG
                APT nlohmann-json3-dev DNF json-devel SPACK nlohmann-json CONDA nlohmann_json)
trainer_require(NAME CLI11 WANTED "2.0 or newer" PACKAGE CLI11 VERSION 2.0 OPTIONS CONFIG
                APT libcli11-dev DNF cli11-devel SPACK cli11 CONDA cli11)
trainer_require(NAME OpenSSL WANTED "1.1 or newer" PACKAGE OpenSSL VERSION 1.1 OPTIONS COMPONENTS Crypto
                APT libssl-dev DNF openssl-devel SPACK openssl CONDA openssl)
trainer_require(NAME libpng WANTED "1.6 or newer" PACKAGE PNG VERSION 1.6 APT libpng-dev DNF libpng-devel SPACK libpng CONDA libpng)
if(NOT gif IN_LIST TRAINER_WITHOUT)
  trainer_require(NAME giflib WANTED "5.1 or newer" PACKAGE GIF VERSION 5.1 APT libgif-dev DNF giflib-devel SPACK giflib CONDA giflib)
endif()
if(NOT archive IN_LIST TRAINER_WITHOUT)
  trainer_require(NAME libarchive WANTED "3.2 or newer" PACKAGE LibArchive VERSION 3.2
                  APT libarchive-dev DNF libarchive-devel SPACK libarchive CONDA libarchive)
endif()
# Debian's dnnl-config.cmake requires OpenCL for a GPU run time that is not used here. This row
# looks for the library's files instead.
trainer_require_library(NAME oneDNN WANTED "2.6, 2.7 or 3" TARGET DNNL::dnnl
                        HEADER oneapi/dnnl/dnnl_version.h LIBRARY dnnl SINCE "DNNL_VERSION_MAJOR +[23]$" PC dnnl
                        APT libdnnl-dev DNF onednn-devel SPACK onednn CONDA onednn-cpu-omp)
trainer_require_library(NAME xxHash WANTED "0.8 or newer" TARGET trainer::xxhash HEADER xxhash.h LIBRARY xxhash
                        SINCE "XXH3_64bits_withSeed" PC libxxhash APT libxxhash-dev DNF xxhash-devel SPACK xxhash CONDA xxhash)
trainer_require_library(NAME libjpeg-turbo WANTED "2.0 or newer, with TurboJPEG" TARGET trainer::turbojpeg HEADER turbojpeg.h
                        LIBRARY turbojpeg SINCE "tjGetErrorCode" PC libturbojpeg
                        APT libturbojpeg0-dev DNF turbojpeg-devel SPACK libjpeg-turbo CONDA libjpeg-turbo)
if(NOT webp IN_LIST TRAINER_WITHOUT)
  trainer_require_library(NAME libwebp WANTED "0.5 or newer" TARGET trainer::webp HEADER webp/decode.h LIBRARY webp
                          SINCE "WebPGetFeatures" PC libwebp APT libwebp-dev DNF libwebp-devel SPACK libwebp CONDA libwebp-base)
endif()
if(NOT sentencepiece IN_LIST TRAINER_WITHOUT)
  trainer_require_library(NAME SentencePiece WANTED "0.1.91 or newer" TARGET trainer::sentencepiece HEADER sentencepiece_processor.h
                          LIBRARY sentencepiece SINCE "util::Status Load" PC sentencepiece
                          APT libsentencepiece-dev DNF sentencepiece-devel SPACK sentencepiece CONDA libsentencepiece)
endif()
include(Hdf5)
set(TRAINER_io_OWN_LIBRARIES trainer::hdf5_kind)
# Optional, and not seen by later folders: without it, files that h5py has compressed with lzf are refused by name.
if(NOT lzf IN_LIST TRAINER_WITHOUT)
  trainer_pkg_config_hints(liblzf)
  find_path(TRAINER_LZF_INCLUDE lzf.h HINTS ${include_hints} PATH_SUFFIXES liblzf)
  find_library(TRAINER_LZF_LIBRARY lzf HINTS ${library_hints})
endif()
mark_as_advanced(TRAINER_LZF_INCLUDE TRAINER_LZF_LIBRARY)
if(TRAINER_LZF_INCLUDE AND TRAINER_LZF_LIBRARY AND NOT lzf IN_LIST TRAINER_WITHOUT)
  add_library(trainer::lzf UNKNOWN IMPORTED GLOBAL)
  set_target_properties(trainer::lzf PROPERTIES IMPORTED_LOCATION ${TRAINER_LZF_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TRAINER_LZF_INCLUDE} INTERFACE_COMPILE_DEFINITIONS TRAINER_HAS_LZF)
  list(APPEND TRAINER_io_OWN_LIBRARIES trainer::lzf)
  message(STATUS "lzf: ${TRAINER_LZF_LIBRARY}")
else()
  message(STATUS "lzf: none, so HDF5 files with this compression are refused (Debian: liblzf-dev)")
endif()
if(TRAINER_TESTS AND NOT TRAINER_FUZZ)
  trainer_require(NAME GoogleTest WANTED "1.10 or newer, for the tests (TRAINER_TESTS=OFF does without)" PACKAGE GTest
                  APT libgtest-dev DNF gtest-devel SPACK googletest CONDA gtest)
endif()
trainer_require_done()

set(TRAINER_base_LIBRARIES fmt::fmt spdlog::spdlog trainer::xxhash OpenSSL::Crypto Threads::Threads)
set(TRAINER_kernels_LIBRARIES DNNL::dnnl)
set(TRAINER_config_LIBRARIES tomlplusplus::tomlplusplus)
# The headers of a parallel HDF5 include mpi.h, so later folders need it, too. Without such an HDF5 only this
# folder sees it, and builds against several MPIs share the objects of all others.
get_target_property(needed trainer::hdf5 INTERFACE_LINK_LIBRARIES)
if(needed MATCHES "MPI::MPI_CXX")
  set(TRAINER_comm_LIBRARIES MPI::MPI_CXX)
else()
  set(TRAINER_comm_OWN_LIBRARIES trainer_mpi)
endif()
set(TRAINER_io_LIBRARIES trainer::hdf5)
set(TRAINER_data_LIBRARIES PNG::PNG trainer::turbojpeg nlohmann_json::nlohmann_json)
# The files that use an optional library, and those that replace them in programs without it.
set(TRAINER_gif_LIBRARY GIF::GIF)
set(TRAINER_gif_SOURCES data/images/gif)
set(TRAINER_webp_LIBRARY trainer::webp)
set(TRAINER_webp_SOURCES data/images/webp)
set(TRAINER_sentencepiece_LIBRARY trainer::sentencepiece)
set(TRAINER_sentencepiece_SOURCES data/tokenizers/sentencepiece)
set(TRAINER_archive_LIBRARY LibArchive::LibArchive)
set(TRAINER_archive_SOURCES checkpoint/npz_reader checkpoint/unpack checkpoint/zip_members)
set(TRAINER_ABSENT_SOURCES "")       # left out of this program
set(TRAINER_REPLACED_SOURCES "")     # all that a build may leave out
set(TRAINER_REPLACING_SOURCES "")
foreach(name gif webp sentencepiece archive)
  list(GET TRAINER_${name}_SOURCES 0 first)
  cmake_path(GET first PARENT_PATH folder)
  if(name IN_LIST TRAINER_WITHOUT)
    list(APPEND TRAINER_ABSENT_SOURCES ${TRAINER_${name}_SOURCES})
  else()
    list(APPEND TRAINER_ABSENT_SOURCES ${folder}/no_${name})
    list(APPEND TRAINER_data_LIBRARIES ${TRAINER_${name}_LIBRARY})
  endif()
  list(APPEND TRAINER_REPLACED_SOURCES ${TRAINER_${name}_SOURCES})
  list(APPEND TRAINER_REPLACING_SOURCES ${folder}/no_${name})
endforeach()
set(TRAINER_checkpoint_LIBRARIES nlohmann_json::nlohmann_json)
set(TRAINER_main_LIBRARIES CLI11::CLI11)
