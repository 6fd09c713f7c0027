# The libraries of others. scripts/setup.sh installs them; a missing one stops the configuration with its name.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(simdjson REQUIRED)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  # Kernels keep vectors in arrays and compute with their length, which only the processor knows where vectors are SVE's.
  target_compile_definitions(PkgConfig::hwy INTERFACE "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endif()

# Debian's CMake file of civetweb names a program that is in another package.
find_path(CIVETWEB_INCLUDE_FOLDER civetweb.h REQUIRED)
find_library(CIVETWEB_LIBRARY civetweb REQUIRED)
add_library(civetweb INTERFACE)
target_include_directories(civetweb SYSTEM INTERFACE ${CIVETWEB_INCLUDE_FOLDER})
target_link_libraries(civetweb INTERFACE ${CIVETWEB_LIBRARY})

add_library(asio INTERFACE)  # header-only, Debian ships no CMake file for it
target_compile_definitions(asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
target_link_libraries(asio INTERFACE Threads::Threads)
if(DTRAIN_SANITIZE STREQUAL thread)  # TSan does not know fences; each of our contexts runs on one thread anyway
  target_compile_definitions(asio INTERFACE ASIO_DISABLE_FENCED_BLOCK)
endif()

if(DTRAIN_TESTS)
  find_package(GTest REQUIRED)
endif()

# Drawn by Chart.js: what the report embeds.
find_file(CHART_JS chart.min.js
          PATHS ${CMAKE_SOURCE_DIR}/runtime/analysis/report/assets  # of a source distribution
                /usr/share/javascript/chart.js
          NO_DEFAULT_PATH REQUIRED)
