# What `cmake --install` puts where. Everything finds everything else by relative paths, so that the folder can be moved.
# libtorch is not part of it: programs that need it look in lib/dtrain/libtorch, where dtrain-get-libtorch puts or links it.
# The target `installed` builds exactly what is installed.
set(CMAKE_INSTALL_LIBDIR lib CACHE STRING "Where libraries go; programs are looked for in ../bin from there")
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(DTRAIN_ZSH_FOLDER ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Where zsh looks for completions")
file(RELATIVE_PATH lib_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/${lib_from_bin}")
set(torch_rpath $ORIGIN/../lib/dtrain/libtorch/torch/lib)
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dtrain)
add_custom_target(installed)

# dtrain_install_module(NAME [headers | ALL])
function(dtrain_install_module name)
  add_dependencies(installed ${name})
  install(TARGETS ${name} EXPORT dtrainTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  if(ARGN STREQUAL "ALL")
    install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  elseif(ARGN)
    list(TRANSFORM ARGN PREPEND include/dtrain/${name}/ OUTPUT_VARIABLE headers)
    install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dtrain/${name})
  endif()
  get_target_property(libraries ${name} LINK_LIBRARIES)
  if("libtorch::cpu" IN_LIST libraries)
    set_property(TARGET ${name} APPEND PROPERTY INSTALL_RPATH ${torch_rpath})
  endif()
endfunction()

# What find_package(dtrain) reads. Without dtrain::train there is nothing to find.
function(dtrain_install_cmake_files)
  configure_package_config_file(cmake/dtrainConfig.cmake.in ${CMAKE_BINARY_DIR}/cmake/dtrainConfig.cmake
                                INSTALL_DESTINATION ${cmake_folder})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/cmake/dtrainConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/cmake/dtrainConfig.cmake ${CMAKE_BINARY_DIR}/cmake/dtrainConfigVersion.cmake
                cmake/dtrainLibtorch.cmake DESTINATION ${cmake_folder})
  install(EXPORT dtrainTargets NAMESPACE dtrain:: DESTINATION ${cmake_folder})
endfunction()

function(dtrain_install_programs)
  foreach(program IN LISTS ARGN)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    add_dependencies(installed ${program})
  endforeach()
endfunction()

function(dtrain_install_torch_programs)
  dtrain_install_programs(dtrain-calibrate dtrain-worker)
  set_property(TARGET dtrain-calibrate dtrain-worker APPEND PROPERTY INSTALL_RPATH ${torch_rpath})
endfunction()

# Called last: programs, CMake files, documents.
function(dtrain_install_rest)
  dtrain_install_programs(dtrain dtrain-agent dtrain-saver)
  add_dependencies(installed dtrain_share)
  install(FILES ${CMAKE_BINARY_DIR}/share/dtrain.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/share/dtrain.bash RENAME dtrain
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${CMAKE_BINARY_DIR}/share/_dtrain DESTINATION ${DTRAIN_ZSH_FOLDER})
  install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md"
          PATTERN images EXCLUDE)
  install(FILES README.md CHANGELOG.md LICENSE packaging/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(DIRECTORY configs examples DESTINATION ${CMAKE_INSTALL_DATADIR}/dtrain
          PATTERN __pycache__ EXCLUDE PATTERN "*.pt" EXCLUDE PATTERN data EXCLUDE
          REGEX "examples/CMakeLists.txt$" EXCLUDE)
  install(DIRECTORY python/dtrain/follow DESTINATION ${CMAKE_INSTALL_DATADIR}/dtrain PATTERN __pycache__ EXCLUDE)
  if(DTRAIN_TORCH)
    dtrain_install_torch_programs()
    file(READ packaging/dtrain-get-libtorch text)
    string(REGEX REPLACE "\nminor=[0-9.]+" "\nminor=${DTRAIN_LIBTORCH_MINOR}" text "${text}")
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/packaging/dtrain-get-libtorch CONTENT "${text}" @ONLY)
    install(PROGRAMS ${CMAKE_BINARY_DIR}/packaging/dtrain-get-libtorch DESTINATION ${CMAKE_INSTALL_BINDIR})
    dtrain_install_cmake_files()
  endif()
endfunction()
