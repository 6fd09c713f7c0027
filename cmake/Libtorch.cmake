# libtorch::cpu: libtorch_cpu and libc10 of the wheel in .deps/libtorch, or of DTRAIN_LIBTORCH_DIR.
set(DTRAIN_LIBTORCH_DIR ${CMAKE_SOURCE_DIR}/.deps/libtorch/torch CACHE PATH "The folder with libtorch's lib and include")
dtrain_import_libtorch(${DTRAIN_LIBTORCH_DIR} problem)
if(problem)
  message(FATAL_ERROR "${problem}: run scripts/setup.sh, "
                      "or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of an installed PyTorch ${DTRAIN_LIBTORCH_WANTED}")
endif()
