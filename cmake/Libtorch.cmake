# libtorch::cpu: libtorch_cpu and libc10 of the wheel in .deps/libtorch, or of DTRAIN_LIBTORCH_DIR.
# find_package(Torch) would need the CUDA toolkit; dtrain's CUDA part is opened at run time instead.
set(DTRAIN_LIBTORCH_DIR ${CMAKE_SOURCE_DIR}/.deps/libtorch/torch CACHE PATH "The folder with libtorch's lib and include")
if(NOT EXISTS ${DTRAIN_LIBTORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no libtorch in ${DTRAIN_LIBTORCH_DIR}: run scripts/setup.sh, "
                      "or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of an installed PyTorch 2.11")
endif()
add_library(libtorch::c10 SHARED IMPORTED)
set_target_properties(libtorch::c10 PROPERTIES IMPORTED_LOCATION ${DTRAIN_LIBTORCH_DIR}/lib/libc10.so)
add_library(libtorch::cpu SHARED IMPORTED)
set_target_properties(libtorch::cpu PROPERTIES
  IMPORTED_LOCATION ${DTRAIN_LIBTORCH_DIR}/lib/libtorch_cpu.so
  # After the system's folders: the wheel brings a newer fmt than the one spdlog was built with.
  INTERFACE_COMPILE_OPTIONS
    "SHELL:-idirafter ${DTRAIN_LIBTORCH_DIR}/include;SHELL:-idirafter ${DTRAIN_LIBTORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES libtorch::c10)
