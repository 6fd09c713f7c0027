# Compiler, linker and output folders, the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# -fPIC for programs too: only code compiled alike can share a precompiled header.
add_compile_options(-fPIC -Wall -Wextra -Wno-missing-field-initializers)
# Other processors than x86-64 have an instruction for a product and a sum in each of their versions, and GCC would use it.
# A product and a sum stay two roundings: the same bits on every processor.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  add_compile_options(-ffp-contract=off)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on std::string operator+ (GCC bug 105651) and on std::optional, more of them where more is inlined.
  add_compile_options(-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-maybe-uninitialized)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-dangling-reference)  # takes every function that returns a reference for one into its arguments
endif()

# GCC looks for memory that it can free each time its heap has grown by a third. Here it may grow further first.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-expand=100 --param ggc-min-heapsize=1048576>")

# Sources of one target are compiled several at a time: most of the compiler's time goes into the headers that they share.
set(DTRAIN_UNITY 16 CACHE STRING "Sources in one compilation; 0: each by itself")
# libtorch's headers alone take 20 s. One by one, sources get them precompiled: better where few change between builds.
set(DTRAIN_TORCH_UNITY 48 CACHE STRING "The same for libraries that include libtorch")
if(DTRAIN_UNITY GREATER 1)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE ${DTRAIN_UNITY})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # GCC takes the files of a batch for headers
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(CCACHE ccache)
if(CCACHE)
  # Precompiled headers and ccache get along only with these two told to look away, and with -fpch-preprocess. With
  # CCACHE_DEPEND a source that is not in the cache is read once, not twice.
  add_compile_options(-fpch-preprocess)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12.1))  # GCC 11 does not know its name
  add_link_options(-fuse-ld=mold)
endif()
if(DTRAIN_SANITIZE)
  add_compile_options(-fsanitize=${DTRAIN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DTRAIN_SANITIZE})
endif()
if(DTRAIN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "DTRAIN_FUZZ needs clang's libFuzzer, but the compiler is ${CMAKE_CXX_COMPILER_ID}: "
                        "use the preset 'fuzz' (scripts/setup.sh lint installs clang++-14)")
  endif()
  # Every finding ends the program, the standard library's own checks included; only libFuzzer's programs have its main().
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS)
endif()
