# SPDX-License-Identifier: MIT
# Makes the targets railyard::core, ::data, ::launched, ::nccl, ::gloo, ::torch and ::railyard (all that were found, but
# for data, launched and nccl). The project itself and the installed package include this one file, so that both ways
# give the same targets.
include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/RailyardCompiled.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/RailyardData.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/RailyardGloo.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/RailyardLaunched.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/RailyardLibTorch.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/RailyardNccl.cmake")

# They are imported targets: a project that installs libraries of its own on top of them needs no export set of ours,
# and its compiler takes our headers for system headers.
function(railyard_add_interface name)
  if(NOT TARGET railyard::${name})
    add_library(railyard::${name} INTERFACE IMPORTED GLOBAL)
  endif()
  target_link_libraries(railyard::${name} INTERFACE ${ARGN})
endfunction()

function(railyard_add_core include_dir)
  find_package(fmt QUIET)
  find_package(Threads QUIET)
  if(NOT TARGET fmt::fmt)
    set(problem "Railyard needs the fmt library: install it (Debian: apt install libfmt-dev) or set fmt_DIR." PARENT_SCOPE)
    return()
  endif()
  foreach(target fmt::fmt Threads::Threads)
    get_target_property(is_imported ${target} IMPORTED)
    get_target_property(alias_of ${target} ALIASED_TARGET)
    if(is_imported AND NOT alias_of)
      set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
    endif()
  endforeach()
  railyard_add_interface(core fmt::fmt Threads::Threads)
  target_include_directories(railyard::core INTERFACE "${include_dir}")
  target_compile_features(railyard::core INTERFACE cxx_std_20)
  # Concepts are built from small named ones: at depth 3 GCC names the part that is missing.
  target_compile_options(railyard::core INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fconcepts-diagnostics-depth=3>)
endfunction()

# with_gloo and with_torch are ON, OFF or AUTO. Sets RAILYARD_COMPONENTS to what there is, RAILYARD_PROBLEMS to one
# sentence for each thing that was asked for and cannot be had, in the caller's scope.
# compiled_dir has what railyard_add_compiled() compiles.
function(railyard_add_components include_dir compiled_dir with_gloo with_torch)
  set_property(GLOBAL PROPERTY RAILYARD_INCLUDE_DIR "${include_dir}")
  set_property(GLOBAL PROPERTY RAILYARD_COMPILED_DIR "${compiled_dir}")
  set(components core)
  set(problems)
  set(problem)
  railyard_add_core("${include_dir}")
  if(problem)
    set(RAILYARD_COMPONENTS PARENT_SCOPE)
    set(RAILYARD_PROBLEMS "${problem}" PARENT_SCOPE)
    return()
  endif()

  railyard_add_data()
  railyard_add_launched()
  railyard_add_nccl()
  if(with_gloo)
    railyard_find_gloo(problem)
    if(NOT problem)
      railyard_add_interface(gloo railyard::core railyard::libgloo)
      target_compile_definitions(railyard::gloo INTERFACE RAILYARD_WITH_GLOO=1)
      list(APPEND components gloo)
    elseif(NOT with_gloo STREQUAL "AUTO")
      list(APPEND problems "${problem}")
    endif()
  endif()
  if(with_torch)
    railyard_find_torch(problem is_absent)
    if(NOT problem)
      # LibTorch's wheels carry symbols of another Gloo. The first library of the link line answers: Gloo comes first
      # in whatever order a program names our targets.
      railyard_add_interface(torch railyard::core $<TARGET_NAME_IF_EXISTS:railyard::libgloo> railyard::libtorch)
      target_compile_definitions(railyard::torch INTERFACE RAILYARD_WITH_TORCH=1)
      list(APPEND components torch)
    elseif(NOT with_torch STREQUAL "AUTO" OR NOT is_absent)
      list(APPEND problems "${problem}")  # a damaged LibTorch is never passed over in silence
    endif()
  endif()

  set(all ${components})
  list(TRANSFORM all PREPEND railyard::)
  railyard_add_interface(railyard ${all})
  list(APPEND components data nccl)  # only for who asks for them: data takes seconds to compile, nccl needs a GPU
  if(TARGET railyard::launched)
    list(APPEND components launched)  # likewise: it has to be linked with libssl
  endif()
  set(RAILYARD_COMPONENTS "${components}" PARENT_SCOPE)
  set(RAILYARD_PROBLEMS "${problems}" PARENT_SCOPE)
endfunction()
