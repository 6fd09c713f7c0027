// The programs of dtrain that link libtorch, for those that link none: dtrain-worker, dtrain-calibrate. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace dtrain::run {

struct TrainingProgram {
  std::filesystem::path file;
  std::string library_path;  // the LD_LIBRARY_PATH with which it finds libtorch; empty: that of this process
};

// Error with a remedy if the program, or a libtorch that fits it, is not there.
TrainingProgram training_program(const std::string& name);

}  // namespace dtrain::run
