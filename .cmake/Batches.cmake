# SPDX-License-Identifier: Apache-2.0
# Compiles several sources at a time, because headers that they share take most of a compiler's
# time. CMake has a property for this (UNITY_BUILD), whose files name sources by absolute paths. The
# files made here name them from the project's folder, so every folder with equal sources makes equal
# objects, and ccache finds them. A new source changes the batch that it joins and no other: names
# decide where a batch ends.
option(TRAINER_BATCHES "Compile several sources at a time (preset release)" OFF)

# trainer_batches(LIST NAME SIZE [ALONE source...]): replaces the sources in LIST by files that include
# about SIZE of them each, neighbours by name. NAME begins the names of these files. Sources in ALONE
# stay.
function(trainer_batches list name size)
  if(NOT TRAINER_BATCHES)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "ALONE" ${ARGN})
  math(EXPR least "${size} / 2")
  math(EXPR most "${size} + ${least}")
  math(EXPR ends "${least} + 1")
  set(result "")
  set(includes "")
  set(length 0)
  set(sources ${${list}})
  list(SORT sources)
  foreach(source IN LISTS sources)
    if(source MATCHES "^\\$<" OR source IN_LIST arg_ALONE)
      list(APPEND result ${source})
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE relative)
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    string(MD5 hash ${relative})
    string(SUBSTRING ${hash} 0 7 hash)
    math(EXPR hash "0x${hash} % ${ends}")
    if(length GREATER_EQUAL most OR (length GREATER_EQUAL least AND hash EQUAL 0))
      trainer_write_batch()
    endif()
    if(length EQUAL 0)
      string(MAKE_C_IDENTIFIER ${relative} first)
    endif()
    string(APPEND includes "#include \"${relative}\"\n")
    math(EXPR length "${length} + 1")
  endforeach()
  if(length GREATER 0)
    trainer_write_batch()
  endif()
  set(${list} ${result} PARENT_SCOPE)
endfunction()

# Writes the batch that trainer_batches has collected, named after its first source.
macro(trainer_write_batch)
  set(file ${CMAKE_BINARY_DIR}/generated/batches/${name}-${first}${extension})
  file(CONFIGURE OUTPUT ${file} CONTENT "${includes}" @ONLY)
  list(APPEND result ${file})
  set(includes "")
  set(length 0)
endmacro()
