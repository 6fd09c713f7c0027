# dtrain_cuda_headers(RESULT WHAT "the nccl backend" OPTION DTRAIN_NCCL HEADERS nccl.h ...)
# The folders of the headers of CUDA and NCCL, with those that the CUDA runtime's include. They come from wheels, never from a
# CUDA of the machine, so that every machine builds the same: some lie beside libtorch; what those include in turn was fetched
# by scripts/setup.sh. WHAT includes them, and is not built where OPTION is off. A build by pip leaves it out where one is missing:
# then RESULT is empty.
set(DTRAIN_CUDA_HEADERS "" CACHE STRING "Folders in which headers of CUDA are looked for first")
function(dtrain_cuda_headers result)
  cmake_parse_arguments(arg "" "WHAT;OPTION" "HEADERS" ${ARGN})
  set(wheels ${CMAKE_SOURCE_DIR}/.deps/libtorch)
  set(fetched ${CMAKE_SOURCE_DIR}/.deps/cuda-headers)
  if(DTRAIN_LIBTORCH_DIR)
    get_filename_component(wheels ${DTRAIN_LIBTORCH_DIR} REALPATH)
    get_filename_component(wheels ${wheels} DIRECTORY)
    get_filename_component(fetched ${DTRAIN_LIBTORCH_DIR}/../../cuda-headers ABSOLUTE)
  endif()
  set(folders ${DTRAIN_CUDA_HEADERS} ${wheels}/nvidia/nccl/include ${wheels}/nvidia/cu13/include
              ${fetched}/nvidia/cu13/include ${CMAKE_SOURCE_DIR}/.deps/cuda-headers/nvidia/cu13/include
              ${wheels}/torch/include)
  set(found "")
  foreach(header ${arg_HEADERS} cuda_runtime.h crt/host_config.h nv/target)
    unset(folder)
    find_path(folder ${header} PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
    if(NOT folder AND SKBUILD)
      message(STATUS "dtrain is built without ${arg_WHAT}: ${header} was not found beside torch")
      set(${result} "" PARENT_SCOPE)
      return()
    elseif(NOT folder)
      list(JOIN folders "\n  " where)
      message(FATAL_ERROR "${header} was not found, which ${arg_WHAT} includes. It was looked for in\n  ${where}\n"
                          "Run scripts/setup.sh, which fetches it, or build without ${arg_WHAT}: -D${arg_OPTION}=OFF")
    endif()
    list(APPEND found ${folder})
  endforeach()
  list(REMOVE_DUPLICATES found)
  list(REMOVE_ITEM found ${wheels}/torch/include)  # libtorch::cpu has it
  set(${result} ${found} PARENT_SCOPE)
endfunction()
