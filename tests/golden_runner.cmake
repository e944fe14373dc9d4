# SPDX-License-Identifier: Apache-2.0
# build/tests/golden runs recorded cases of the published code through the real engine. These tests
# run all cases, on meshes that fit on two cores.
file(GLOB golden_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/golden_runner/*.cpp)
trainer_batches(golden_sources golden 6)
add_library(golden_objects OBJECT ${golden_sources})
target_link_libraries(golden_objects PRIVATE trainer_train nlohmann_json::nlohmann_json trainer::hdf5)
reads_common_headers(golden_objects)
add_executable(golden $<TARGET_OBJECTS:golden_objects>)
target_link_libraries(golden PRIVATE trainer_train nlohmann_json::nlohmann_json trainer::hdf5)
trainer_with_gpus(golden)
set_target_properties(golden PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# The program on the emulated GPU (cuda_tests.cmake).
add_executable(golden_on_emulator $<TARGET_OBJECTS:golden_objects> ${emulated_gpu})
target_link_libraries(golden_on_emulator PRIVATE trainer_train nlohmann_json::nlohmann_json trainer::hdf5)
set_target_properties(golden_on_emulator PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

set(golden_cases "")
set(golden_model_cases "")
foreach(name ar parallel sincos mixed_r100 mixed_r050)
  list(APPEND golden_model_cases ${CMAKE_CURRENT_LIST_DIR}/golden/case_${name}.h5)
endforeach()
# Results of evaluators, with the parameters of case_ar.h5.
list(APPEND golden_model_cases ${CMAKE_CURRENT_LIST_DIR}/golden/predict.h5)
list(APPEND golden_model_cases ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/heads.h5)
list(APPEND golden_cases ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/losses.h5)
foreach(name case_adafactor case_adam case_adam_bf16mu case_momentum fewshot)
  list(APPEND golden_cases ${CMAKE_CURRENT_LIST_DIR}/golden/${name}.h5)
endforeach()

# Optimizers and schedules of self-supervised recipes, meters, evaluations of features.
foreach(name optimizers schedules meters evaluation)
  list(APPEND golden_cases ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/${name}.h5)
endforeach()

# Self-supervised training: the whole batch in one pass, because batch norm reads all of it.
set(golden_ssl_training "")
foreach(name simclr moco swav dino)
  list(APPEND golden_ssl_training ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/e2e_${name}.h5)
endforeach()

# golden_test(NAME RANKS [options]): runs all cases on RANKS ranks (environment: mpi_tests.cmake).
# In bf16 it runs the model cases only.
function(golden_test name ranks)
  set(cases ${golden_model_cases})
  if(NOT bf16 IN_LIST ARGN)
    list(APPEND cases ${golden_cases})
  endif()
  add_test(NAME ${name}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:golden> ${ARGN} ${cases})
  set_tests_properties(${name} PROPERTIES LABELS mpi PROCESSORS ${ranks} ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endfunction()

foreach(ranks 1 2 3 4)
  golden_test(golden_mpi${ranks} ${ranks})
endforeach()
golden_test(golden_mpi2_2x1_replicated 2 --mesh 2x1 --strategy replicated --micro-batch 2)
golden_test(golden_mpi2_1x2_zero1 2 --mesh 1x2 --strategy zero1 --recompute mlp)
golden_test(golden_mpi3_3x1_zero1 3 --mesh 3x1 --strategy zero1 --micro-batch 1)
golden_test(golden_mpi4_4x1 4 --mesh 4x1 --recompute block)
golden_test(golden_mpi4_2x2_mesh 4 --mesh 2x2 --level mesh --slices 4)
golden_test(golden_mpi2_anywhere 2 --mesh 1x2 --level anywhere --slices 4)
golden_test(golden_mpi1_bf16 1 --compute bf16)
golden_test(golden_mpi3_bf16 3 --compute bf16 --recompute gelu --micro-batch 2)
golden_test(golden_mpi1_mesh 1 --level mesh --slices 4 --micro-batch 3 --recompute block --threads 2)

# Batch norm takes the statistics of all examples, so these run in one pass.
set(golden_trunks "")
foreach(name basic bottleneck groups)
  list(APPEND golden_trunks ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/resnet_${name}.h5)
endforeach()
function(golden_trunk_test name ranks)
  add_test(NAME golden_trunk_${name}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:golden> ${ARGN}
                                             ${golden_trunks})
  set_tests_properties(golden_trunk_${name} PROPERTIES LABELS mpi PROCESSORS ${ranks} ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endfunction()
golden_trunk_test(mpi1_bf16 1 --compute bf16 ${golden_ssl_training})
golden_trunk_test(mpi2_mesh 2 --mesh 2x1 --level mesh --recompute block --strategy zero1)
golden_trunk_test(mpi1_anywhere 1 --level anywhere --slices 4 ${golden_ssl_training})
golden_trunk_test(mpi3 3)
golden_trunk_test(mpi4 4 --mesh 2x2)
add_test(NAME golden_transforms COMMAND golden ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/transforms.h5)
set_tests_properties(golden_transforms PROPERTIES LABELS mpi ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")

# SigLIP: its batches have eight pairs.
set(golden_siglip "")
foreach(name map_last_adam nohead_adafactor gap_map_frozen)
  list(APPEND golden_siglip ${CMAKE_CURRENT_LIST_DIR}/golden/siglip/case_${name}.h5)
endforeach()
function(golden_siglip_test name ranks)
  add_test(NAME golden_siglip_${name}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:golden> ${ARGN}
                                             ${golden_siglip})
  set_tests_properties(golden_siglip_${name} PROPERTIES LABELS mpi PROCESSORS ${ranks} ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endfunction()
golden_siglip_test(mpi1 1)
golden_siglip_test(mpi1_passes 1 --micro-batch 2 --recompute mlp)
golden_siglip_test(mpi2_zero1 2 --mesh 1x2 --strategy zero1 --micro-batch 2)
golden_siglip_test(mpi4 4 --mesh 2x2)
golden_siglip_test(mpi4_mesh 4 --mesh 4x1 --level mesh --slices 8 --micro-batch 1 --recompute block)

# The emulated GPU runs the cases that take it seconds only.
function(golden_on_emulator_test ranks name)
  add_test(NAME golden_on_emulator_mpi${ranks}${name}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
                   $<TARGET_FILE:golden_on_emulator> --device cuda ${ARGN})
  set_tests_properties(golden_on_emulator_mpi${ranks}${name} PROPERTIES LABELS "mpi;cuda" PROCESSORS ${ranks}
                       ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endfunction()
set(mixed ${CMAKE_CURRENT_LIST_DIR}/golden/case_mixed_r050.h5)
golden_on_emulator_test(1 "" ${golden_model_cases} ${CMAKE_CURRENT_LIST_DIR}/golden/case_adam_bf16mu.h5
                        ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/losses.h5 ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/optimizers.h5
                        ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/meters.h5 ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/evaluation.h5
                        ${CMAKE_CURRENT_LIST_DIR}/golden/ssl/transforms.h5 ${golden_ssl_training})
golden_on_emulator_test(1 _bf16 --compute bf16 --recompute mlp ${mixed})
golden_on_emulator_test(1 _tf32 --compute tf32 ${mixed})
golden_on_emulator_test(1 _fp16 --compute fp16 --recompute gelu ${mixed})
golden_on_emulator_test(2 _mesh --mesh 1x2 --level mesh --slices 4 ${mixed})
golden_on_emulator_test(2 _zero1 --mesh 2x1 --strategy zero1 --micro-batch 2 ${mixed})
golden_on_emulator_test(1 _trunk ${golden_trunks})
golden_on_emulator_test(1 _siglip ${golden_siglip})
golden_on_emulator_test(2 _siglip --mesh 1x2 --level mesh --slices 4 --micro-batch 2 ${golden_siglip})

foreach(ranks 1 2 3 4)
  add_test(NAME golden_ssl_training_mpi${ranks}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:golden> ${golden_ssl_training})
  set_tests_properties(golden_ssl_training_mpi${ranks} PROPERTIES LABELS mpi PROCESSORS ${ranks}
                       ENVIRONMENT "${TRAINER_MPI_ENVIRONMENT}")
endforeach()
