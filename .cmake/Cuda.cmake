# SPDX-License-Identifier: Apache-2.0
# TRAINER_CUDA=AUTO|ON|OFF decides if the CUDA back end is built. This file sets TRAINER_HAS_CUDA
# and TRAINER_HAS_NCCL. The build needs only the compiler, the static run time and the headers of
# cuBLASLt and cuDNN. The program opens the libraries when it uses a GPU, so it also starts on
# machines without them.
set(TRAINER_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO (where compiler and headers are found), ON, OFF")
set_property(CACHE TRAINER_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT TRAINER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TRAINER_CUDA is ${TRAINER_CUDA}; it must be AUTO, ON or OFF")
endif()

# Prints why there is no CUDA back end. Stops if the user asked for it.
function(trainer_no_cuda reason)
  set(TRAINER_HAS_CUDA OFF PARENT_SCOPE)
  if(TRAINER_CUDA STREQUAL ON)
    message(FATAL_ERROR "TRAINER_CUDA=ON, but ${reason}")
  endif()
  message(STATUS "CUDA back end: off (${reason})")
endfunction()

set(TRAINER_HAS_CUDA OFF)
set(TRAINER_HAS_NCCL OFF)
if(TRAINER_CUDA STREQUAL OFF OR TRAINER_FUZZ)
  trainer_no_cuda("TRAINER_CUDA=OFF, or fuzzers only")
  return()
endif()

find_program(TRAINER_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT TRAINER_NVCC)
  trainer_no_cuda("no nvcc in PATH or /usr/local/cuda/bin; CUDAToolkit_ROOT says where else")
  return()
endif()

# Wheels of PyTorch and JAX contain cuDNN with its headers, which the toolkit may lack.
execute_process(COMMAND python3 -c "import nvidia, os
print(';'.join(os.path.join(p, d, 'include') for p in nvidia.__path__ for d in sorted(os.listdir(p))))"
                OUTPUT_VARIABLE TRAINER_WHEEL_INCLUDES OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
cmake_path(GET TRAINER_NVCC PARENT_PATH cuda_bin)
cmake_path(GET cuda_bin PARENT_PATH cuda_root)
set(missing "")
foreach(header cublasLt.h cudnn.h)
  find_path(TRAINER_INCLUDE_${header} ${header} HINTS ${cuda_root}/include ${TRAINER_WHEEL_INCLUDES})
  if(NOT TRAINER_INCLUDE_${header})
    list(APPEND missing ${header})
  endif()
endforeach()
if(missing)
  list(JOIN missing ", " missing)
  trainer_no_cuda("nvcc is ${TRAINER_NVCC}, but there is no ${missing}; CMAKE_PREFIX_PATH says where")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${TRAINER_NVCC})
# Each kind of GPU costs a compilation of all kernels, so a build holds code for this machine's GPU,
# or for H100 and H200 if there is none. TRAINER_GPUS=all is for programs that go to other machines:
# A100 and other GPUs of compute capability 8, H100 and H200; the driver compiles for newer GPUs.
set(TRAINER_GPUS here CACHE STRING "The kinds of GPU in the program: here (this machine's), all (to install, to bundle)")
set_property(CACHE TRAINER_GPUS PROPERTY STRINGS here all)
if(NOT TRAINER_GPUS MATCHES "^(here|all)$")
  message(FATAL_ERROR "TRAINER_GPUS is ${TRAINER_GPUS}; it must be here or all")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  if(TRAINER_GPUS STREQUAL all)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
  else()
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader RESULT_VARIABLE status
                    OUTPUT_VARIABLE capabilities OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(status EQUAL 0 AND capabilities MATCHES "^[0-9]+\\.[0-9]")
      string(REGEX REPLACE "[ .]" "" capabilities "${capabilities}")
      string(REPLACE "\n" ";" capabilities "${capabilities}")
      list(REMOVE_DUPLICATES capabilities)
      list(TRANSFORM capabilities REPLACE "^90$" "90a")
      list(TRANSFORM capabilities APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    endif()
    set(note "the installed program has code for ${CMAKE_CUDA_ARCHITECTURES} alone; preset bundle has code for all GPUs")
    install(CODE "message(WARNING \"${note}\")")
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})

set(TRAINER_HAS_CUDA ON)
add_library(trainer_cuda INTERFACE)
target_include_directories(trainer_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${TRAINER_INCLUDE_cublasLt.h}
                           ${TRAINER_INCLUDE_cudnn.h})
target_link_libraries(trainer_cuda INTERFACE CUDA::cudart_static)

# NCCL may be missing. Ranks on GPUs then exchange through the host.
find_path(TRAINER_INCLUDE_nccl.h nccl.h HINTS ${cuda_root}/include ${TRAINER_WHEEL_INCLUDES})
if(TRAINER_INCLUDE_nccl.h)
  set(TRAINER_HAS_NCCL ON)
  target_include_directories(trainer_cuda SYSTEM INTERFACE ${TRAINER_INCLUDE_nccl.h})
endif()
message(STATUS "CUDA back end: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, code for ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${TRAINER_HAS_NCCL})")
