// The programs and libraries of a run: libtorch, MPI, Slurm. GPUs: gpus.cpp.
#include <dlfcn.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>

#include <fcntl.h>
#include <unistd.h>

#include "doctor/checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

struct Closer {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Closer>;

Library open_library(const char* name) {
  return Library(::dlopen(name, RTLD_NOW | RTLD_LOCAL));
}

// The first line of a program's output; empty if the program fails or takes too long.
std::string first_output_line(const std::vector<std::string>& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Process process =
      Process::start({.command = command, .fds = {{0, nothing.get()}, {1, writer.get()}, {2, nothing.get()}}});
  writer.reset();
  const auto status = process.wait(std::chrono::seconds(5));
  char buffer[512];
  const ssize_t count = status && status->success() ? ::read(reader.get(), buffer, sizeof buffer) : 0;
  const std::string text(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  return first_line(text);
}

fs::path in_path(const std::string& program) {
  const Variables variables = process_variables();
  const auto path = variables.find("PATH");
  return find_in_path(program, path == variables.end() ? nullptr : &path->second);
}

}  // namespace

Finding check_libtorch(const Variables& variables) {
  const fs::path beside = executable_path().parent_path();
  const fs::path worker = find_program("dtrain-worker", beside, variables);
  if (worker.empty()) {
    return warning("libtorch", "this dtrain was built without it: there is no dtrain-worker beside it",
                   "`model:` experiments need it; programs of your own bring theirs");
  }
  try {
    const std::string path = find_libraries(worker, variables);
    return ok("libtorch", path.empty() ? "found by " + worker.string() : split(path, ':').front());
  } catch (const Error& error) {
    return problem("libtorch", error.what(), error.remedy());
  }
}

Finding check_mpi(bool needed) {
  static const char inside_this_library = 0;
  const fs::path module = library_folder(&inside_this_library) / "libdtrain_comm_mpi.so";
  const fs::path mpirun = in_path("mpirun");
  const auto lacking = [&](const std::string& text, const std::string& remedy) {
    return needed ? problem("MPI", text, remedy) : ok("MPI", text + "; runs over several hosts need it");
  };
  const std::string install = "install Open MPI 4.1 (Debian: openmpi-bin)";
  if (mpirun.empty()) return lacking("there is no mpirun in PATH", install);
  const std::string said = first_output_line({mpirun.string(), "--version"});
  if (said.find("Open MPI") == std::string::npos) {
    return lacking(mpirun.string() + " is not Open MPI's: " + (said.empty() ? "it prints nothing" : said), install);
  }
  if (!fs::exists(module)) {
    return lacking(said + ", but dtrain was built without it", "build dtrain where its headers are (libopenmpi-dev)");
  }
  const Library library = open_library("libmpi.so.40");
  if (!library) return lacking(said + ", but its library libmpi.so.40 is not found", install);
  return ok("MPI", said);
}

Finding check_slurm() {
  const fs::path srun = in_path("srun");
  if (srun.empty()) {
    return problem("Slurm", "there is no srun in PATH", "launch from a node that has Slurm's commands");
  }
  const std::string said = first_output_line({srun.string(), "--version"});
  return said.empty() ? problem("Slurm", srun.string() + " fails", "srun --version says why") : ok("Slurm", said);
}

}  // namespace dtrain::run
