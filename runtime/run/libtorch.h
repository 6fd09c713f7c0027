// Whether a rank's program will find its libraries, libtorch before all, asked before a rank is started: the dynamic
// linker alone would say it once per rank, without a word on what to do. Plain functions; the thread that launches.
#pragma once

#include <filesystem>
#include <string>

#include "environment.h"

namespace dtrain::run {

// The LD_LIBRARY_PATH that ranks running `program` need; empty: they need none beside what `variables` say. libtorch is
// that of DTRAIN_LIBTORCH_DIR, else the one the program itself finds, else the one dtrain-get-libtorch got for this
// user. ConfigError, with what to do, when a library is found nowhere or the libtorch is of another version.
std::string find_libraries(const std::filesystem::path& program, const Variables& variables);

}  // namespace dtrain::run
