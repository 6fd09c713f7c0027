// Checks that a rank's program will find its libraries, above all libtorch, before a rank is started: the dynamic
// linker alone would report it once for each rank and without a remedy. Plain functions; the thread that launches.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/rank/environment.h"

namespace dtrain::rank {

// Returns the LD_LIBRARY_PATH that ranks running `program` need; empty: `variables` are enough. libtorch is that of
// DTRAIN_LIBTORCH_DIR, else the one that the program itself finds, else the one that dtrain-get-libtorch has installed.
// ConfigError with a remedy if a library cannot be found, or libtorch has another minor version than the one for which
// the program is compiled.
std::string find_libraries(const std::filesystem::path& program, const Variables& variables);

// Finds a program of dtrain that links libtorch: beside this program; in a wheel in the folder of the minor version of
// the libtorch that it will use; else in PATH. Empty: there is none. find_libraries() reports faults of its libtorch.
std::filesystem::path find_training_program(const std::string& name, const Variables& variables);

// Returns the minor versions of libtorch ("2.15") for which this dtrain is built: several in a wheel; the newest is the
// last. Empty: without libtorch.
std::vector<std::string> libtorch_minors(const Variables& variables);
// Returns the minor version that this process uses, or else dtrain-worker. Empty: there is none.
std::string libtorch_minor(const Variables& variables);

// Returns the libraries that `program`, or a shared library, links directly or indirectly and that cannot be found with
// this LD_LIBRARY_PATH (empty: this process's own).
std::vector<std::string> missing_libraries(const std::filesystem::path& program, const std::string& library_path);

// Returns the folder of the libtorch_cpu.so that `program` finds with this LD_LIBRARY_PATH; empty: it links none, or
// finds none.
std::filesystem::path libtorch_folder(const std::filesystem::path& program, const std::string& library_path);

// Returns the reason why the libtorch that `program` finds with this LD_LIBRARY_PATH cannot train on GPUs: its CUDA
// part or a library that this part needs is missing. Empty: it can, or the program links no libtorch.
std::string why_no_cuda(const std::filesystem::path& program, const std::string& library_path);

bool built_with_libtorch();

// The reason why a program of dtrain that links libtorch is missing, and the way to get it.
struct MissingProgram {
  std::string text;
  std::string remedy;
};
MissingProgram missing_program(const std::string& name, bool with_libtorch = built_with_libtorch());

// The programs of dtrain that link libtorch, for those that link none: dtrain-worker, dtrain-calibrate. Any thread.

struct TrainingProgram {
  std::filesystem::path file;
  std::string library_path;  // the LD_LIBRARY_PATH with which it finds libtorch; empty: that of this process
};

// Error with a remedy if the program, or a libtorch that fits it, is not there.
TrainingProgram training_program(const std::string& name);

// The version of dtrain.

// "0.1.0", as in plan.json and the dumps.
std::string version();

}  // namespace dtrain::rank
