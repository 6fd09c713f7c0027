#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <memory>

#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/launcher/internal_commands.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {

namespace {

constexpr double kOldestGpu =
    7.5;  // PyTorch's wheels (2.11 to 2.15) have kernels for 7.5, 8.0, 8.6, 9.0, 10.0 and 12.0
// By NVIDIA's table of compatible versions, CUDA 13 needs driver 580.
constexpr const char* kGetDriver =
    "install NVIDIA's driver 580 or later; in a container, start it with the GPUs: docker run --gpus all";

std::string cuda_version(int code) {
  return std::to_string(code / 1000) + "." + std::to_string(code % 1000 / 10);
}

DriverSeen look_at_driver(const std::string& version) {
  DriverSeen driver;
  driver.version = version;
  const std::unique_ptr<void, int (*)(void*)> library(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), &::dlclose);
  driver.library = library != nullptr;
  if (library) {
    auto* const ask = reinterpret_cast<int (*)(int*)>(::dlsym(library.get(), "cuDriverGetVersion"));
    if (ask && ask(&driver.cuda) != 0) driver.cuda = 0;
  }
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", code)) {
    const std::string vendor = host::read_proc_file(entry.path() / "vendor").value_or("");
    const std::string kind = host::read_proc_file(entry.path() / "class").value_or("");
    if (vendor.starts_with("0x10de") && kind.starts_with("0x03")) ++driver.devices;
  }
  return driver;
}

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

bool has_entries_in(const std::filesystem::path& folder) {
  std::error_code code;
  return std::filesystem::directory_iterator(folder, code) != std::filesystem::directory_iterator();
}

void append_findings(std::vector<Finding>& all, std::vector<Finding> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

struct CudaCheck {
  std::vector<Finding> findings;
  int version = kCudaOfLibtorch;
};

// Opens the libraries of a rank of dtrain-worker. Without libtorch there are none: check_libtorch() reports that.
CudaCheck check_cuda(int gpus, const rank::Variables& variables) {
  const std::filesystem::path worker = rank::find_training_program("dtrain-worker", variables);
  if (worker.empty()) return {};
  std::string path;
  try {
    path = rank::find_libraries(worker, variables);
  } catch (const Error&) {
    return {};
  }
  const std::filesystem::path libtorch = rank::libtorch_folder(worker, path);
  std::string failure;
  const std::optional<CudaProbe> probe = probe_cuda(libtorch, path, failure);
  if (!probe) {
    return {{problem("CUDA", failure, "nvidia-smi and dmesg say why; often only a restart of the host helps")}};
  }
  std::vector<std::string> missing;
  const std::filesystem::path file = libtorch / "libtorch_cuda.so";
  std::error_code code;
  if (probe->libtorch_cuda.path.empty() && std::filesystem::exists(file, code))
    missing = rank::missing_libraries(file, path);
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  return {judge_cuda(*probe, missing, gpus,
                     visible == variables.end() ? std::nullopt : std::optional<std::string>(visible->second)),
          probe->cuda.version > 0 ? probe->cuda.version : kCudaOfLibtorch};
}

// By NVIDIA's table of compatible versions, within a major version a program runs with the first driver of it.
std::string driver_remedy(int cuda) {
  if (cuda < 13000) return "install NVIDIA's driver 525 or later";
  return "install NVIDIA's driver 580 or later; on data-centre GPUs, the package cuda-compat-13-0 will do, with its "
         "folder in LD_LIBRARY_PATH; or set DTRAIN_LIBTORCH_DIR to the 'torch' folder of a PyTorch for CUDA 12";
}

}  // namespace

Finding judge_driver(const DriverSeen& driver, int gpus, int cuda) {
  const std::string name = "CUDA driver";
  const std::string devices = count_of(driver.devices, "NVIDIA device");
  if (gpus == 0 && driver.devices == 0) return ok("GPUs", "none: runs use CPUs");
  if (!driver.library && gpus == 0) return problem(name, devices + ", but no libcuda.so.1", kGetDriver);
  if (!driver.library) {
    return problem(name, "NVML lists " + count_of(gpus, "GPU") + ", but there is no libcuda.so.1",
                   "install all of NVIDIA's driver 580 or later; in a container: docker run --gpus all -e "
                   "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  const std::string version = driver.version.empty() ? "" : driver.version + ", ";
  if (driver.cuda == 0) {
    return warning(name, version + "libcuda.so.1 reports no version", "install NVIDIA's driver again");
  }
  const std::string text = version + "for CUDA up to " + cuda_version(driver.cuda);
  if (driver.cuda / 1000 < cuda / 1000) {
    return problem(name, text + "; libtorch is built for CUDA " + cuda_version(cuda), driver_remedy(cuda));
  }
  if (gpus == 0) return problem(name, text + "; it lists no GPU, and there are " + devices, kGetDriver);
  return ok(name, text);
}

std::vector<DeviceNode> nvidia_nodes(const std::filesystem::path& folder) {
  std::vector<DeviceNode> nodes;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("nvidia")) continue;
    const std::string rest = name.substr(6);
    const bool gpu =
        !rest.empty() && std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (gpu || rest == "ctl" || rest == "-uvm")
      nodes.push_back({name, ::access(entry.path().c_str(), R_OK | W_OK) == 0});
  }
  std::sort(nodes.begin(), nodes.end(), [](const DeviceNode& a, const DeviceNode& b) { return a.name < b.name; });
  return nodes;
}

std::vector<Finding> judge_nodes(const std::vector<DeviceNode>& nodes) {
  std::vector<std::string> closed;
  bool uvm = false;
  for (const DeviceNode& node : nodes) {
    uvm |= node.name == "nvidia-uvm";
    if (!node.usable) closed.push_back("/dev/" + node.name);
  }
  std::vector<Finding> findings;
  if (!closed.empty()) {
    findings.push_back(problem("GPU devices", "this user may not read and write " + join_with_and(closed),
                               "ls -l /dev/nvidia* shows who may: join that group (sudo usermod -aG GROUP $USER, then "
                               "log in again); in a container: docker run --gpus all"));
  }
  if (!nodes.empty() && !uvm) {
    findings.push_back(problem("GPU devices", "there is no /dev/nvidia-uvm, without which CUDA does not start",
                               "sudo nvidia-modprobe -u -c=0; in a container: docker run --gpus all"));
  }
  return findings;
}

Finding judge_gpu(const host::GpuInfo& gpu) {
  const std::string name = "GPU " + std::to_string(gpu.index);
  const std::string index = std::to_string(gpu.index);
  std::string text = gpu.name + ", " + format_bytes(static_cast<double>(gpu.total_memory)) + ", ";
  if (gpu.compute_capability) text += "compute capability " + one_decimal(*gpu.compute_capability) + ", ";
  text += gpu.uuid;
  if (!gpu.problem.empty()) {
    return problem(name, text + ": " + gpu.problem,
                   "dtrain does not use it; end what runs on it and reset it (sudo nvidia-smi --gpu-reset -i " + index +
                       "), or have it replaced; nvidia-smi -q -i " + index + " -d ECC,PAGE_RETIREMENT,ROW_REMAPPER");
  }
  if (gpu.compute_capability && *gpu.compute_capability < kOldestGpu - 0.01) {
    return problem(name,
                   text + ": libtorch has kernels for compute capability " + one_decimal(kOldestGpu) + " and later",
                   "leave it out: list the other GPUs in CUDA_VISIBLE_DEVICES");
  }
  return ok(name, text);
}

std::optional<Finding> check_gpu_network(const std::filesystem::path& root) {
  if (!has_entries_in(root / "sys/class/infiniband")) return std::nullopt;
  const std::string name = "GPU network";
  std::error_code code;
  const auto loaded = [&](const char* module) { return std::filesystem::exists(root / "sys/module" / module, code); };
  const std::string gdrcopy = loaded("gdrdrv") ? "; gdrcopy is loaded" : "";
  if (loaded("nvidia_peermem")) return ok(name, "InfiniBand reads GPU memory through nvidia-peermem" + gdrcopy);
  const std::string driver = host::read_proc_file(root / "proc/driver/nvidia/version").value_or("");
  if (driver.find("Open Kernel Module") != std::string::npos) {
    return ok(name, "InfiniBand reads GPU memory through DMA-BUF" + gdrcopy);
  }
  return warning(name, "InfiniBand cannot read GPU memory: nvidia-peermem is not loaded",
                 "sudo modprobe nvidia-peermem, and its name in /etc/modules-load.d/nvidia-peermem.conf");
}

std::vector<Finding> check_gpus(const std::optional<rank::GpusSeen>& seen, const rank::Variables& variables) {
  if (!seen) {
    return {problem("GPUs",
                    "NVIDIA's driver does not answer within " + std::to_string(rank::kGpuPatience.count()) + " s",
                    "dmesg says why; often only a restart of the host helps")};
  }
  const int gpus = static_cast<int>(seen->gpus.size());
  const std::optional<host::GpuSetups> setups = gpus > 0 ? rank::look_at_gpu_setups() : std::nullopt;
  CudaCheck cuda = gpus > 0 ? check_cuda(gpus, variables) : CudaCheck{};
  std::vector<Finding> result{judge_driver(look_at_driver(setups ? setups->driver : ""), gpus, cuda.version)};
  append_findings(result, judge_nodes(nvidia_nodes()));
  for (const std::string& text : seen->warnings) {
    result.push_back(warning("GPUs", text, "nvidia-smi and dmesg say more"));
  }
  if (gpus == 0) return result;
  for (const host::GpuInfo& gpu : seen->gpus) result.push_back(judge_gpu(gpu));
  append_findings(result, std::move(cuda.findings));
  if (setups) {
    append_findings(result, judge_setups(*setups));
    append_findings(result, judge_pairs(*setups, has_entries_in("/sys/class/iommu")));
  }
  if (std::optional<Finding> network = check_gpu_network()) result.push_back(std::move(*network));
  return result;
}

namespace {

using ProbeClock = std::chrono::steady_clock;

// Returns the handle of the first candidate that can be opened, which stays open. The error is that of the last one.
void* open_first(const std::vector<std::string>& candidates, ProbedLibrary& library) {
  for (const std::string& candidate : candidates) {
    std::error_code code;
    if (candidate.find('/') != std::string::npos && !std::filesystem::exists(candidate, code)) continue;
    if (void* const handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      link_map* file = nullptr;  // a library that is opened by its name was found in some folder
      const bool known = ::dlinfo(handle, RTLD_DI_LINKMAP, &file) == 0 && file && file->l_name && *file->l_name;
      library.path = known ? file->l_name : candidate;
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
    const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) { return !line.empty(); });
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

}  // namespace dtrain::launcher
