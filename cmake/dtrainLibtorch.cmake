# What dtrain's own build and find_package(dtrain) share: libtorch::cpu from the 'torch' folder of an installed PyTorch.
# find_package(Torch) would need the CUDA toolkit; dtrain's CUDA part is opened at run time instead.
# libtorch's C++ interface changes with each minor version, so what is compiled against one works with that one alone.

# The version of the PyTorch whose folder this is, as in 2.11.0; "unknown" where it does not say.
function(dtrain_libtorch_version folder result)
  set(version unknown)
  if(EXISTS ${folder}/version.py)
    file(STRINGS ${folder}/version.py line REGEX "^__version__" LIMIT_COUNT 1)
    if(line MATCHES "([0-9]+\\.[0-9]+\\.[0-9]+)")
      set(version ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# Makes libtorch::cpu of that folder; `problem` says what is wrong with it, and is empty when nothing is. `minor` is the one that it
# must have; "any" takes each.
function(dtrain_import_libtorch folder minor problem)
  set(${problem} "" PARENT_SCOPE)
  if(NOT EXISTS ${folder}/lib/libtorch_cpu.so OR NOT EXISTS ${folder}/include/torch/csrc/api/include/torch/torch.h)
    set(${problem} "there is no libtorch in '${folder}'" PARENT_SCOPE)
    return()
  endif()
  dtrain_libtorch_version(${folder} version)
  if(NOT minor STREQUAL "any" AND NOT version STREQUAL unknown AND NOT version MATCHES "^${minor}\\.")
    set(${problem} "the libtorch in '${folder}' is ${version}, and this dtrain is built for ${minor}" PARENT_SCOPE)
    return()
  endif()
  if(TARGET libtorch::cpu)
    return()
  endif()
  add_library(libtorch::c10 SHARED IMPORTED)
  set_target_properties(libtorch::c10 PROPERTIES IMPORTED_LOCATION ${folder}/lib/libc10.so)
  add_library(libtorch::cpu SHARED IMPORTED)
  set_target_properties(libtorch::cpu PROPERTIES
    IMPORTED_LOCATION ${folder}/lib/libtorch_cpu.so
    # After the system's folders: the wheel brings a newer fmt than the one spdlog was built with.
    INTERFACE_COMPILE_OPTIONS
      "SHELL:-idirafter ${folder}/include;SHELL:-idirafter ${folder}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES libtorch::c10)
endfunction()
