# dtrain_module(NAME SOURCES a.cpp ... [USES other modules] [PRIVATE_LIBS libraries] [PCH headers]
#               [PUBLISH headers|ALL] [TEST_ONLY] [COLD])
# A shared library libdtrain_NAME.so. Its public headers are include/dtrain/NAME/; it sees the headers of what it
# USES and of nothing else: that is how the layers of docs/architecture.md are enforced (config also sees the lists in comm's
# and data's headers, and profile data's header of what reading took; scripts/layers.py checks who includes them). Modules share base's precompiled
# header. PCH: heavier headers, precompiled where sources are compiled one by one (DTRAIN_UNITY of 0); in a unity build they
# are read so seldom that precompiling them costs more than it saves. PUBLISH: those of its headers that a trial includes, which are installed
# with the library. TEST_ONLY: not installed at all. COLD: nothing in it runs in every step (dtrain_cold).
function(dtrain_module name)
  cmake_parse_arguments(arg "TEST_ONLY;COLD" "" "SOURCES;USES;PUBLIC_LIBS;PRIVATE_LIBS;PCH;PUBLISH" ${ARGN})
  add_library(${name} SHARED ${arg_SOURCES})
  add_library(dtrain::${name} ALIAS ${name})
  # No NAME_EXPORTS: a macro of its own would keep a target from using a shared precompiled header.
  # Before 1.0 every minor version may change the ABI.
  set_target_properties(${name} PROPERTIES OUTPUT_NAME dtrain_${name} DEFINE_SYMBOL "" VERSION ${PROJECT_VERSION}
                                           SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${arg_USES} ${arg_PUBLIC_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  set(one_by_one FALSE)
  if(libtorch::cpu IN_LIST arg_PUBLIC_LIBS)
    dtrain_torch_unity(${name} ${DTRAIN_TORCH_UNITY})
    if(NOT DTRAIN_TORCH_UNITY GREATER 1)
      set(one_by_one TRUE)
    endif()
  endif()
  if(arg_PCH AND (name STREQUAL base OR one_by_one OR NOT CMAKE_UNITY_BUILD))
    target_precompile_headers(${name} PRIVATE ${arg_PCH})
  elseif(NOT libtorch::cpu IN_LIST arg_PUBLIC_LIBS)
    target_precompile_headers(${name} REUSE_FROM base)
  endif()
  if(arg_COLD)
    dtrain_cold(${name})
  endif()
  if(NOT arg_TEST_ONLY)
    dtrain_install_module(${name} ${arg_PUBLISH})
  endif()
endfunction()

# For a target whose code runs now and then: it is optimised less, which takes a quarter less of the compiler's time.
function(dtrain_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# Sources of a target that includes libtorch that are compiled together: SIZE; 0 or 1: each by itself.
function(dtrain_torch_unity target size)
  if(CMAKE_UNITY_BUILD AND size GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
  else()
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()

# The precompiled header of libtorch's headers for a program that is installed, where there is one.
function(dtrain_torch_headers target)
  dtrain_torch_unity(${target} ${DTRAIN_TORCH_UNITY})
  get_target_property(headers train PRECOMPILE_HEADERS)
  if(headers)
    target_precompile_headers(${target} REUSE_FROM train)
  endif()
endfunction()

# The precompiled header of base, where base is compiled here (TorchFree.cmake).
function(dtrain_base_headers target)
  get_target_property(imported base IMPORTED)
  if(NOT imported)
    target_precompile_headers(${target} REUSE_FROM base)
  endif()
endfunction()

# The same as dtrain_torch_headers() for a program of the tests: torch_test_pch is precompiled once for all of them.
function(dtrain_torch_test_headers target)
  dtrain_torch_unity(${target} 4)
  target_compile_options(${target} PRIVATE -O0)
  target_compile_definitions(${target} PRIVATE GTEST_HAS_PTHREAD=1)  # as it was when the header was precompiled
  target_precompile_headers(${target} REUSE_FROM torch_test_pch)
endfunction()

# Tests of what depends on libtorch's version have the label `libtorch`; this builds what they need (scripts/torch_versions.sh).
add_custom_target(libtorch_tests)

# dtrain_test(NAME SOURCES a.cpp ... USES modules [TIMEOUT seconds] [LABELS l] [SERIAL])
# A GoogleTest program run by ctest, its cases listed one by one. SERIAL: nothing else runs beside it.
function(dtrain_test name)
  cmake_parse_arguments(arg "SERIAL" "TIMEOUT" "SOURCES;USES;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 240)  # a loaded machine takes several times as long as a quiet one
  endif()
  add_executable(${name} ${arg_SOURCES} $<TARGET_OBJECTS:assertion_count>)
  target_link_libraries(${name} PRIVATE ${arg_USES} base GTest::gtest_main GTest::gmock)
  # -O0: tests wait for the compiler longer than for themselves.
  if(train IN_LIST arg_USES OR libtorch::cpu IN_LIST arg_USES)
    dtrain_torch_test_headers(${name})
    list(APPEND arg_LABELS libtorch)
    add_dependencies(libtorch_tests ${name})
  else()
    target_precompile_headers(${name} REUSE_FROM test_pch)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  target_compile_definitions(${name} PRIVATE DTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" DTRAIN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(DTRAIN_SANITIZE OR CMAKE_CROSSCOMPILING)  # under an emulator
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES ${properties})
endfunction()

# dtrain_embed(SOURCE HEADER header NAMESPACE namespace PARTS constant files... [constant files...] ...)
# Makes SOURCE in the build folder: the constants (k...) that the header declares as std::string_view, each with its files.
function(dtrain_embed source)
  cmake_parse_arguments(arg "" "HEADER;NAMESPACE" "PARTS" ${ARGN})
  set(parts "")
  set(files "")
  foreach(word IN LISTS arg_PARTS)
    if(word MATCHES "^k[A-Z][A-Za-z]*$")
      string(APPEND parts "|${word}=")
    else()
      string(APPEND parts ",${word}")
      list(APPEND files ${word})
    endif()
  endforeach()
  string(REPLACE "=," "=" parts "${parts}")
  string(SUBSTRING "${parts}" 1 -1 parts)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DOUT=${source} -DHEADER=${arg_HEADER} -DNAMESPACE=${arg_NAMESPACE} -DPARTS=${parts}
            -P ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/Embed.cmake
    VERBATIM)
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # clang-tidy runs before it is made
endfunction()
