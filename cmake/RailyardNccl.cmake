# SPDX-License-Identifier: MIT
# Makes the target railyard::nccl. There is nothing to find: NCCL and the CUDA runtime are looked for by the program.
include_guard(GLOBAL)

function(railyard_add_nccl)
  if(TARGET railyard::nccl)
    return()
  endif()
  railyard_add_interface(nccl railyard::core ${CMAKE_DL_LIBS})
  target_compile_definitions(railyard::nccl INTERFACE RAILYARD_WITH_NCCL=1)
endfunction()
