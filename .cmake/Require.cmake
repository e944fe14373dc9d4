# SPDX-License-Identifier: Apache-2.0
# trainer_require and trainer_require_library look for one library each and note it if it is
# missing. trainer_require_done reports all missing libraries at once, so that a newcomer installs
# once.
#
# A library is a row: NAME, WANTED (a version, or a description), and its packages in APT, DNF,
# SPACK and CONDA.
set(TRAINER_MISSING "")
set(TRAINER_PACKAGERS apt dnf spack conda)
find_package(PkgConfig QUIET)  # optional, because it only gives hints

# Notes that the library of a row is missing. `found` names an unsuitable one, or is empty.
macro(trainer_missing found)
  list(APPEND TRAINER_MISSING "${row_NAME}")
  set(TRAINER_MISSING_${row_NAME} "${row_WANTED}")
  set(TRAINER_FOUND_${row_NAME} "${found}")
  foreach(packager IN LISTS TRAINER_PACKAGERS)
    string(TOUPPER ${packager} field)
    list(APPEND TRAINER_MISSING_${packager} ${row_${field}})
  endforeach()
endmacro()

# trainer_require(ROW... PACKAGE name [VERSION version] [OPTIONS ...]): a library that CMake finds
# by a module of CMake or of the library.
macro(trainer_require)
  cmake_parse_arguments(row "" "NAME;WANTED;PACKAGE;VERSION" "APT;DNF;SPACK;CONDA;OPTIONS" ${ARGN})
  find_package(${row_PACKAGE} ${row_VERSION} QUIET ${row_OPTIONS})
  if(NOT ${row_PACKAGE}_FOUND)
    set(other "")
    if(${row_PACKAGE}_CONSIDERED_VERSIONS)
      set(other "version ${${row_PACKAGE}_CONSIDERED_VERSIONS} in ${${row_PACKAGE}_CONSIDERED_CONFIGS}")
    elseif(${row_PACKAGE}_VERSION AND row_VERSION AND ${row_PACKAGE}_VERSION VERSION_LESS row_VERSION)
      set(other "version ${${row_PACKAGE}_VERSION}")
    endif()
    trainer_missing("${other}")
  endif()
endmacro()

# trainer_require_library(ROW... TARGET target HEADER header LIBRARY name... PC name SINCE regex): a
# library that is found by its header and its file. A line of the header must match SINCE, which
# names the newest feature in use or a version.
function(trainer_require_library)
  cmake_parse_arguments(row "" "NAME;WANTED;TARGET;HEADER;PC;SINCE" "APT;DNF;SPACK;CONDA;LIBRARY" ${ARGN})
  string(MAKE_C_IDENTIFIER ${row_TARGET} id)
  trainer_pkg_config_hints(${row_PC})
  find_path(TRAINER_${id}_INCLUDE ${row_HEADER} HINTS ${include_hints})
  find_library(TRAINER_${id}_LIBRARY NAMES ${row_LIBRARY} HINTS ${library_hints})
  mark_as_advanced(TRAINER_${id}_INCLUDE TRAINER_${id}_LIBRARY)
  set(header ${TRAINER_${id}_INCLUDE}/${row_HEADER})
  set(other "")
  set(known "")
  if(NOT TRAINER_${id}_INCLUDE AND TRAINER_${id}_LIBRARY)
    set(other "${TRAINER_${id}_LIBRARY}, but no header ${row_HEADER}")
  elseif(TRAINER_${id}_INCLUDE AND NOT TRAINER_${id}_LIBRARY)
    set(other "${header}, but no library to link")
  elseif(TRAINER_${id}_INCLUDE)
    file(STRINGS ${header} known REGEX "${row_SINCE}" LIMIT_COUNT 1)
    set(other "another version, ${header}")
  endif()
  if(NOT known)
    trainer_missing("${other}")
    unset(TRAINER_${id}_INCLUDE CACHE)  # the next configuration looks again
    unset(TRAINER_${id}_LIBRARY CACHE)
    trainer_missing_to_parent()
    return()
  endif()
  add_library(${row_TARGET} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(${row_TARGET} PROPERTIES IMPORTED_LOCATION ${TRAINER_${id}_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${TRAINER_${id}_INCLUDE})
endfunction()

# Sets include_hints and library_hints of the caller to the folders that pkg-config knows for the
# given names.
macro(trainer_pkg_config_hints)
  set(include_hints "")
  set(library_hints "")
  if(PKG_CONFIG_FOUND)
    foreach(pc ${ARGN})
      string(MAKE_C_IDENTIFIER TRAINER_PC_${pc} prefix)
      pkg_check_modules(${prefix} QUIET ${pc})
      list(APPEND include_hints ${${prefix}_INCLUDE_DIRS} ${${prefix}_INCLUDEDIR})
      list(APPEND library_hints ${${prefix}_LIBRARY_DIRS} ${${prefix}_LIBDIR})
    endforeach()
  endif()
endmacro()

# Passes the notes of trainer_missing from a function to its caller.
macro(trainer_missing_to_parent)
  foreach(variable MISSING MISSING_${row_NAME} FOUND_${row_NAME} MISSING_apt MISSING_dnf MISSING_spack MISSING_conda)
    set(TRAINER_${variable} "${TRAINER_${variable}}" PARENT_SCOPE)
  endforeach()
endmacro()

# Pads `text` with spaces to `width`.
function(trainer_pad text width result)
  string(LENGTH "${text}" length)
  math(EXPR spaces "${width} - ${length}")
  if(spaces LESS 1)
    set(spaces 1)
  endif()
  string(REPEAT " " ${spaces} filling)
  set(${result} "${text}${filling}" PARENT_SCOPE)
endfunction()

# Stops the configuration if libraries are missing, and names them all. CMake prints lines that
# begin with a space unchanged.
function(trainer_require_done)
  if(NOT TRAINER_MISSING)
    return()
  endif()
  list(LENGTH TRAINER_MISSING count)
  set(text "Missing libraries: ${count}")
  foreach(name IN LISTS TRAINER_MISSING)
    trainer_pad("  ${name}" 24 line)
    string(APPEND text "\n${line}${TRAINER_MISSING_${name}}")
    if(TRAINER_FOUND_${name})
      string(APPEND text "\n                          found: ${TRAINER_FOUND_${name}}")
    endif()
  endforeach()
  string(APPEND text "\n\nTheir packages, all in one command:")
  set(apt "apt-get install")
  set(dnf "dnf install")
  set(spack "spack install")
  set(conda "conda install -c conda-forge")
  foreach(packager IN LISTS TRAINER_PACKAGERS)
    list(REMOVE_DUPLICATES TRAINER_MISSING_${packager})
    list(JOIN TRAINER_MISSING_${packager} " " packages)
    string(APPEND text "\n  ${${packager}} ${packages}")
  endforeach()
  string(APPEND text "\n\nDecks may not need giflib, libwebp, SentencePiece or libarchive: -DTRAINER_WITHOUT='gif;webp;sentencepiece;archive' "
         "builds without them.")
  string(APPEND text "\n\nLibraries in folders of their own: CMAKE_PREFIX_PATH names these folders (of HDF5 also HDF5_ROOT, of MPI the "
         "compiler wrapper in PATH).\n")
  message(FATAL_ERROR "${text}")
endfunction()
