// The programs and libraries of a run: libtorch, GPUs, NCCL, MPI, Slurm.
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
#include "dtrain/base/units.h"
#include "dtrain/host/gpus.h"
#include "dtrain/host/proc_file.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr int kNcclMajor = 2;
constexpr int kNcclMinor = 28;

struct Closer {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Closer>;

Library open_library(const char* name) {
  return Library(::dlopen(name, RTLD_NOW | RTLD_LOCAL));
}

// The number that a library's function writes through its argument; -1 if there is no such function or it fails.
int asked(void* library, const char* function) {
  int number = -1;
  auto* call = reinterpret_cast<int (*)(int*)>(::dlsym(library, function));
  return call != nullptr && call(&number) == 0 ? number : -1;
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
  return text.substr(0, text.find('\n'));
}

fs::path in_path(const std::string& program) {
  const Variables variables = process_variables();
  const auto path = variables.find("PATH");
  return find_in_path(program, path == variables.end() ? nullptr : &path->second);
}

// NVIDIA's devices on the bus, with or without a driver.
int nvidia_devices() {
  int count = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", code)) {
    const std::string vendor = host::read_proc_file(entry.path() / "vendor").value_or("");
    const std::string kind = host::read_proc_file(entry.path() / "class").value_or("");
    if (vendor.starts_with("0x10de") && kind.starts_with("0x03")) ++count;
  }
  return count;
}

Finding check_nccl(bool gpus) {
  const Library library = open_library("libnccl.so.2");
  const std::string wanted = std::to_string(kNcclMajor) + "." + std::to_string(kNcclMinor);
  if (!library) {
    if (!gpus) return ok("NCCL", "not there, and no GPU needs it");
    return warning("NCCL", "there is no libnccl.so.2 where libraries are looked for",
                   "install NCCL " + wanted + ", or name the folder of PyTorch's in LD_LIBRARY_PATH");
  }
  const int code = asked(library.get(), "ncclGetVersion");  // 22803: 2.28.3
  const std::string found =
      std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
  if (code < kNcclMajor * 10000 + kNcclMinor * 100) {
    return warning("NCCL", found + " is older than " + wanted, "install NCCL " + wanted + " or later");
  }
  return ok("NCCL", found);
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

std::vector<Finding> check_gpus(const std::optional<GpusSeen>& seen) {
  std::vector<Finding> result;
  const Library driver = open_library("libcuda.so.1");
  const int devices = nvidia_devices();
  if (driver) {
    const int version = asked(driver.get(), "cuDriverGetVersion");  // 12040: 12.4
    const std::string text = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    result.push_back(version > 0 ? ok("CUDA driver", "for CUDA up to " + text)
                                 : warning("CUDA driver", "reports no version", "finish its installation"));
  } else if (devices > 0) {
    result.push_back(
        problem("CUDA driver", std::to_string(devices) + " NVIDIA devices, but no libcuda.so.1",
                "install NVIDIA's driver; in a container, start it with the GPUs (docker run --gpus all)"));
  } else {
    result.push_back(ok("CUDA driver", "none, and no NVIDIA device"));
  }
  if (!seen) {
    result.push_back(problem("GPUs",
                             "NVIDIA's driver does not answer within " + std::to_string(kGpuPatience.count()) + " s",
                             "dmesg says why; often only a restart of the host helps"));
    return result;
  }
  for (const host::GpuInfo& one : seen->gpus) {
    const std::string name = "GPU " + std::to_string(one.index);
    const std::string text = one.name + ", " + format_bytes(static_cast<double>(one.total_memory)) + ", " + one.uuid;
    result.push_back(one.problem.empty()
                         ? ok(name, text)
                         : problem(name, text + ": " + one.problem, "it is not used; see nvidia-smi -q"));
  }
  for (const std::string& text : seen->warnings) result.push_back(warning("GPUs", text, "see nvidia-smi"));
  result.push_back(check_nccl(!seen->gpus.empty()));
  return result;
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
