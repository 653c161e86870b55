# SPDX-License-Identifier: MIT
# Makes the target railyard::data: every reader of files, and what learns from data. Compressed files need libraries that
# may be missing; then what reads them is left out.
include_guard(GLOBAL)

# Adds the library and the macro, if it and its header are there.
function(railyard_add_reader macro header library)
  find_path(${macro}_INCLUDE_DIR ${header})
  find_library(${macro}_LIBRARY ${library})
  mark_as_advanced(${macro}_INCLUDE_DIR ${macro}_LIBRARY)
  if(NOT ${macro}_INCLUDE_DIR OR NOT ${macro}_LIBRARY)
    return()
  endif()
  target_compile_definitions(railyard::data INTERFACE ${macro}=1)
  if(NOT ${macro}_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    target_include_directories(railyard::data SYSTEM INTERFACE "${${macro}_INCLUDE_DIR}")
  endif()
  target_link_libraries(railyard::data INTERFACE "${${macro}_LIBRARY}")
endfunction()

function(railyard_add_data)
  if(TARGET railyard::data)
    return()
  endif()
  railyard_add_interface(data railyard::core)
  target_compile_definitions(railyard::data INTERFACE RAILYARD_WITH_DATA=1)
  railyard_add_reader(RAILYARD_WITH_ZLIB zlib.h z)
  railyard_add_reader(RAILYARD_WITH_ZSTD zstd.h zstd)
endfunction()
