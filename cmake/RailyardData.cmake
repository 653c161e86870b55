# SPDX-License-Identifier: MIT
# Makes the target railyard::data: every reader of files, and what learns from data. Compressed files and pictures need
# libraries that may be missing; then what reads them is left out.
include_guard(GLOBAL)

# Adds the macro, and each library of the pairs of header and library that follow it, if all of them are there.
# ${macro}_FOUND says so.
function(railyard_add_reader macro)
  set(${macro}_FOUND FALSE CACHE INTERNAL "")
  set(include_dirs)
  set(libraries)
  while(ARGN)
    list(POP_FRONT ARGN header library)
    find_path(RAILYARD_${library}_INCLUDE_DIR ${header})
    find_library(RAILYARD_${library}_LIBRARY ${library})
    mark_as_advanced(RAILYARD_${library}_INCLUDE_DIR RAILYARD_${library}_LIBRARY)
    if(NOT RAILYARD_${library}_INCLUDE_DIR OR NOT RAILYARD_${library}_LIBRARY)
      return()
    endif()
    list(APPEND include_dirs "${RAILYARD_${library}_INCLUDE_DIR}")
    list(APPEND libraries "${RAILYARD_${library}_LIBRARY}")
  endwhile()
  set(${macro}_FOUND TRUE CACHE INTERNAL "")
  list(REMOVE_ITEM include_dirs ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  target_compile_definitions(railyard::data INTERFACE ${macro}=1)
  target_include_directories(railyard::data SYSTEM INTERFACE ${include_dirs})
  target_link_libraries(railyard::data INTERFACE ${libraries})
endfunction()

function(railyard_add_data)
  if(TARGET railyard::data)
    return()
  endif()
  railyard_add_interface(data railyard::core)
  target_compile_definitions(railyard::data INTERFACE RAILYARD_WITH_DATA=1)
  railyard_add_reader(RAILYARD_WITH_ZLIB zlib.h z)
  railyard_add_reader(RAILYARD_WITH_ZSTD zstd.h zstd)
  railyard_add_reader(RAILYARD_WITH_IMAGES png.h png jpeglib.h jpeg)
endfunction()
