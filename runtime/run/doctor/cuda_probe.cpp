#include "doctor/cuda_probe.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include "doctor/gpu_checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/run/cuda_probe.h"

namespace dtrain::run {
namespace {

using ProbeClock = std::chrono::steady_clock;

// Returns the handle of the first candidate that can be opened, which stays open. The error is that of the last one.
void* open_first(const std::vector<std::string>& candidates, ProbedLibrary& library) {
  for (const std::string& one : candidates) {
    std::error_code code;
    if (one.find('/') != std::string::npos && !std::filesystem::exists(one, code)) continue;
    if (void* const handle = ::dlopen(one.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      link_map* file = nullptr;  // a library that is opened by its name was found in some folder
      const bool known = ::dlinfo(handle, RTLD_DI_LINKMAP, &file) == 0 && file && file->l_name && *file->l_name;
      library.path = known ? file->l_name : one;
      library.error.clear();
      return handle;
    }
    library.error = ::dlerror();
  }
  return nullptr;
}

// Functions of libraries as comm/nccl finds them: libtorch_cuda's own libraries come first.
class Functions {
 public:
  Functions(void* libtorch_cuda, const std::vector<std::string>& candidates, ProbedLibrary& library)
      : libtorch_cuda_(libtorch_cuda), candidates_(candidates), library_(library) {}
  // Null where there is none.
  template <typename Function>
  Function* find(const char* name) {
    void* address = libtorch_cuda_ ? ::dlsym(libtorch_cuda_, name) : nullptr;
    if (!address && !own_) own_ = open_first(candidates_, library_);
    if (!address && own_) address = ::dlsym(own_, name);
    Dl_info info{};
    if (address && ::dladdr(address, &info) != 0 && info.dli_fname) library_.path = info.dli_fname;
    return reinterpret_cast<Function*>(address);
  }
  void ask_version(const char* name) {
    int version = 0;
    if (auto* const ask = find<int(int*)>(name); ask && ask(&version) == 0) library_.version = version;
  }

 private:
  void* libtorch_cuda_;
  const std::vector<std::string>& candidates_;
  ProbedLibrary& library_;
  void* own_ = nullptr;
};

// Starts CUDA's driver and counts its GPUs.
void count_gpus(Functions& cuda, CudaProbe& probe) {
  auto* const count = cuda.find<int(int*)>("cudaGetDeviceCount");
  auto* const text = cuda.find<const char*(int)>("cudaGetErrorString");
  if (!count) return;
  probe.error = count(&probe.gpus);
  if (probe.error == 0) return;
  probe.gpus = 0;
  const char* const words = text ? text(probe.error) : nullptr;
  probe.error_text = words ? words : "unknown error";
}

Json json_of(const ProbedLibrary& library) {
  return {{"path", library.path}, {"error", library.error}, {"version", library.version}};
}

ProbedLibrary library_of(const Json& json) {
  return {json.at("path").get<std::string>(), json.at("error").get<std::string>(), json.at("version").get<int>()};
}

}  // namespace

CudaCandidates cuda_candidates(const std::filesystem::path& libtorch) {
  CudaCandidates result{{"libtorch_cuda.so"}, {"libcudart.so.13", "libcudart.so.12"}, {"libnccl.so.2"}};
  if (libtorch.empty()) return result;
  const std::filesystem::path wheels = libtorch / ".." / ".." / "nvidia";
  result.libtorch_cuda.push_back((libtorch / "libtorch_cuda.so").string());
  for (const char* const file : {"cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12"}) {
    result.cuda.push_back((wheels / file).lexically_normal().string());
  }
  result.nccl.push_back((wheels / "nccl" / "lib" / "libnccl.so.2").lexically_normal().string());
  return result;
}

std::string nccl_version(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

Json to_json(const CudaProbe& probe) {
  return {{"libtorch_cuda", json_of(probe.libtorch_cuda)},
          {"cuda", json_of(probe.cuda)},
          {"nccl", json_of(probe.nccl)},
          {"gpus", probe.gpus},
          {"error", probe.error},
          {"error_text", probe.error_text}};
}

CudaProbe cuda_probe_of(const Json& json) {
  return {library_of(json.at("libtorch_cuda")), library_of(json.at("cuda")), library_of(json.at("nccl")),
          json.at("gpus").get<int>(),           json.at("error").get<int>(), json.at("error_text").get<std::string>()};
}

CudaProbe probe_cuda_here(const CudaCandidates& candidates) {
  CudaProbe probe;
  void* const libtorch_cuda = open_first(candidates.libtorch_cuda, probe.libtorch_cuda);
  Functions cuda(libtorch_cuda, candidates.cuda, probe.cuda);
  cuda.ask_version("cudaRuntimeGetVersion");
  count_gpus(cuda, probe);
  Functions nccl(libtorch_cuda, candidates.nccl, probe.nccl);
  nccl.ask_version("ncclGetVersion");
  return probe;
}

void cuda_probe(const std::string& libtorch) {
  const CudaProbe probe = probe_cuda_here(cuda_candidates(libtorch));
  std::printf("%s\n", to_line(to_json(probe)).c_str());
  std::fflush(stdout);
  ::_exit(0);  // libraries of CUDA may wait for a driver when they are closed
}

std::optional<CudaProbe> probe_cuda(const std::filesystem::path& libtorch, const std::string& library_path,
                                    std::string& failure) {
  Pipe pipe = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = {executable_path().string(), "cuda-probe", libtorch.string()};
  if (!library_path.empty()) options.environment["LD_LIBRARY_PATH"] = library_path;
  options.fds = {{0, nothing.get()}, {1, pipe.writer.get()}, {2, nothing.get()}};
  Process process = Process::start(options);
  pipe.writer.reset();
  const std::optional<std::string> output = read_to_end(pipe.reader.get(), ProbeClock::now() + kCudaPatience);
  if (!output) {
    process.kill_group(SIGKILL);
    if (!process.wait(std::chrono::seconds(1))) process.detach();  // a driver that hangs does not let it end
    failure = "does not answer within " + std::to_string(kCudaPatience.count()) + " s";
    return std::nullopt;
  }
  const ExitStatus status = process.wait();
  try {
    const std::vector<std::string> lines = split(*output, '\n');  // libraries may have printed others before
    const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& one) { return !one.empty(); });
    return cuda_probe_of(Json::parse(last == lines.rend() ? "" : *last));
  } catch (const std::exception&) {
    failure = "a process that opens its libraries ends with " + status.describe();
    return std::nullopt;
  }
}

// The meaning of a probe of CUDA's libraries.
namespace {

constexpr int kOldestNccl = 22800;
constexpr const char* kGetFullLibtorch =
    "get libtorch with the GPU libraries: dtrain-get-libtorch --flavour full; or set DTRAIN_LIBTORCH_DIR to the "
    "'torch' folder of an installed PyTorch for CUDA 13 (dtrain version says which PyTorch dtrain is built for)";

// Returns the remedy if CUDA does not start.
std::string cuda_remedy(int error) {
  switch (error) {
    case 35:  // cudaErrorInsufficientDriver
      return "install NVIDIA's driver 580 or later; for a libtorch for CUDA 12, 525 or later";
    case 100:  // cudaErrorNoDevice
      return "see that CUDA_VISIBLE_DEVICES names a GPU; in a container: docker run --gpus all";
    case 802:  // cudaErrorSystemNotReady
      return "sudo systemctl start nvidia-fabricmanager: GPUs behind NVSwitch wait for it";
    case 803:  // cudaErrorSystemDriverMismatch
      return "restart the host: its kernel has another version of NVIDIA's driver than libcuda.so.1; in a container, "
             "remove the image's own libcuda.so.1";
    case 804:  // cudaErrorCompatNotSupportedOnDevice
      return "take the folder of cuda-compat out of LD_LIBRARY_PATH: these GPUs do not support it";
    case 805:  // cudaErrorMpsConnectionFailed
      return "start NVIDIA's MPS again, or unset CUDA_MPS_PIPE_DIRECTORY";
    case 999:  // cudaErrorUnknown
      return "sudo nvidia-modprobe -u -c=0, or restart the host; dmesg says why";
    default:
      return "nvidia-smi and dmesg say more";
  }
}

Finding judge_libtorch_cuda(const ProbedLibrary& library, const std::vector<std::string>& missing) {
  const std::string name = "libtorch_cuda";
  if (!library.path.empty()) return ok(name, library.path);
  if (!missing.empty()) {
    return problem(name, "libtorch_cuda.so cannot be opened: it needs " + join_with_and(missing), kGetFullLibtorch);
  }
  return problem(name, "libtorch_cuda.so cannot be opened: " + library.error, kGetFullLibtorch);
}

Finding judge_cuda_start(const CudaProbe& probe, int gpus, const std::optional<std::string>& visible) {
  const std::string name = "CUDA";
  if (probe.cuda.path.empty()) {
    return problem(name, "its runtime cannot be opened: " + probe.cuda.error, kGetFullLibtorch);
  }
  if (probe.error != 0) {
    return problem(name, "does not start: " + probe.error_text + " (error " + std::to_string(probe.error) + ")",
                   cuda_remedy(probe.error));
  }
  const std::string version =
      std::to_string(probe.cuda.version / 1000) + "." + std::to_string(probe.cuda.version % 1000 / 10) + ", ";
  std::string text = version + "shows a process " + std::to_string(probe.gpus) + " of " + count_of(gpus, "GPU");
  if (visible) text += ", with CUDA_VISIBLE_DEVICES=" + *visible;
  if (probe.gpus == 0) return problem(name, text, cuda_remedy(100));
  if (probe.gpus < gpus && !visible) return warning(name, text, "nvidia-smi -q shows what is wrong with the others");
  return ok(name, text);
}

Finding judge_nccl(const ProbedLibrary& library) {
  const std::string name = "NCCL";
  if (library.path.empty()) return problem(name, "cannot be opened: " + library.error, kGetFullLibtorch);
  if (library.version < kOldestNccl) {
    return problem(
        name, nccl_version(library.version) + " (" + library.path + ") is older than 2.28",
        "take its folder out of LD_LIBRARY_PATH, so that libtorch's own is found, or install NCCL 2.28 or later");
  }
  return ok(name, nccl_version(library.version) + ", " + library.path);
}

}  // namespace

std::vector<Finding> judge_cuda(const CudaProbe& probe, const std::vector<std::string>& missing, int gpus,
                                const std::optional<std::string>& visible) {
  return {judge_libtorch_cuda(probe.libtorch_cuda, missing), judge_cuda_start(probe, gpus, visible),
          judge_nccl(probe.nccl)};
}

}  // namespace dtrain::run
