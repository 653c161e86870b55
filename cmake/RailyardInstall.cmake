# SPDX-License-Identifier: MIT
# Installs headers, the package for find_package(railyard), and files for pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(railyard_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/railyard")
install(DIRECTORY include/railyard DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp")
install(DIRECTORY single_include/compiled DESTINATION "${CMAKE_INSTALL_DATADIR}/railyard")
configure_package_config_file(cmake/railyardConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/railyardConfig.cmake"
                              INSTALL_DESTINATION "${railyard_package_dir}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_DATADIR)
# Before 1.0 a minor release may change the API.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/railyardConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/railyardConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/railyardConfigVersion.cmake" cmake/RailyardComponents.cmake
              cmake/RailyardCompiled.cmake cmake/RailyardData.cmake cmake/RailyardGloo.cmake cmake/RailyardLaunched.cmake
              cmake/RailyardLibTorch.cmake cmake/RailyardNccl.cmake cmake/libtorch_version.cpp
        DESTINATION "${railyard_package_dir}")

# Installs name.pc for a component.
function(railyard_install_pkgconfig name description requires cflags libs)
  configure_file(cmake/railyard.pc.in "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
endfunction()

# Appends -isystem for each folder but the compiler's own: in front of those it would break #include_next.
function(railyard_append_system_includes variable)
  foreach(dir IN LISTS ARGN)
    if(NOT dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      string(APPEND ${variable} " -isystem \"${dir}\"")
    endif()
  endforeach()
  set(${variable} "${${variable}}" PARENT_SCOPE)
endfunction()

railyard_install_pkgconfig(railyard "${PROJECT_DESCRIPTION}" "fmt" "-I\${includedir} -pthread" "-pthread")

set(gloo_file)
if(TARGET railyard::gloo)
  get_target_property(gloo_file railyard::libgloo IMPORTED_LOCATION)
  get_target_property(dirs railyard::libgloo INTERFACE_INCLUDE_DIRECTORIES)
  set(flags "-DRAILYARD_WITH_GLOO=1")
  railyard_append_system_includes(flags ${dirs})
  set(gloo_file "\"${gloo_file}\"")
  railyard_install_pkgconfig(railyard-gloo "Railyard's collectives over Gloo" "railyard" "${flags}" "${gloo_file}")
endif()

if(TARGET railyard::torch)
  get_target_property(torch_file railyard::libtorch IMPORTED_LOCATION)
  get_target_property(c10_file railyard::libc10 IMPORTED_LOCATION)
  get_target_property(dirs railyard::libtorch INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(options railyard::libtorch INTERFACE_LINK_OPTIONS)
  list(GET dirs 0 first)
  set(flags "-DRAILYARD_WITH_TORCH=1")
  if(first MATCHES "/railyard_fmt$")
    list(POP_FRONT dirs)  # it lies in our build folder
    string(APPEND flags " -DFMT_HEADER_ONLY=1")
  endif()
  railyard_append_system_includes(flags ${dirs})
  # pkg-config keeps the last of several equal -l: by its path Gloo stays before LibTorch, which may carry another Gloo.
  set(libs "${gloo_file} \"${torch_file}\" \"${c10_file}\"")
  get_filename_component(dir "${torch_file}" DIRECTORY)
  if(NOT dir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    string(APPEND libs " \"-Wl,-rpath,${dir}\"")
  endif()
  get_target_property(torch_libs railyard::libtorch INTERFACE_LINK_LIBRARIES)
  list(REMOVE_ITEM torch_libs railyard::libc10)
  foreach(lib IN LISTS torch_libs)
    string(APPEND libs " \"${lib}\"")
  endforeach()
  foreach(option IN LISTS options)
    string(REPLACE "LINKER:" "-Wl," option "${option}")
    string(APPEND libs " \"${option}\"")
  endforeach()
  railyard_install_pkgconfig(railyard-torch "Railyard's models, loaders and tensors" "railyard" "${flags}" "${libs}")
endif()
