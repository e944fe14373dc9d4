# What each folder links. Only the folder named may include these headers.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

if(NOT TRAINER_FUZZ)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  # Open MPI: the C interface only.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(tomlplusplus REQUIRED)
# Debian's dnnl-config.cmake insists on OpenCL for a GPU run time that is not used here, so the library is looked up by hand.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(nlohmann_json REQUIRED)
find_package(GIF REQUIRED)
find_package(CLI11 REQUIRED)

pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(TURBOJPEG REQUIRED IMPORTED_TARGET libturbojpeg)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp)
pkg_check_modules(ARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-openmpi)

set(TRAINER_base_LIBRARIES fmt::fmt spdlog::spdlog PkgConfig::XXHASH OpenSSL::Crypto Threads::Threads)
set(TRAINER_kernels_LIBRARIES DNNL::dnnl)
set(TRAINER_config_LIBRARIES tomlplusplus::tomlplusplus)
set(TRAINER_comm_LIBRARIES MPI::MPI_CXX)
set(TRAINER_io_LIBRARIES PkgConfig::HDF5)
set(TRAINER_data_LIBRARIES PkgConfig::PNG PkgConfig::TURBOJPEG PkgConfig::WEBP GIF::GIF PkgConfig::ARCHIVE
                           PkgConfig::SENTENCEPIECE nlohmann_json::nlohmann_json)
set(TRAINER_checkpoint_LIBRARIES nlohmann_json::nlohmann_json)
set(TRAINER_main_LIBRARIES CLI11::CLI11)
