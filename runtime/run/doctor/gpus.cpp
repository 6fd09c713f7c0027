#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
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
#include "libtorch.h"

namespace dtrain::run {
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
CudaCheck check_cuda(int gpus, const Variables& variables) {
  const std::filesystem::path worker = find_training_program("dtrain-worker", variables);
  if (worker.empty()) return {};
  std::string path;
  try {
    path = find_libraries(worker, variables);
  } catch (const Error&) {
    return {};
  }
  const std::filesystem::path libtorch = libtorch_folder(worker, path);
  std::string failure;
  const std::optional<CudaProbe> probe = probe_cuda(libtorch, path, failure);
  if (!probe) {
    return {{problem("CUDA", failure, "nvidia-smi and dmesg say why; often only a restart of the host helps")}};
  }
  std::vector<std::string> missing;
  const std::filesystem::path file = libtorch / "libtorch_cuda.so";
  std::error_code code;
  if (probe->libtorch_cuda.path.empty() && std::filesystem::exists(file, code)) missing = missing_libraries(file, path);
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
  for (const DeviceNode& one : nodes) {
    uvm |= one.name == "nvidia-uvm";
    if (!one.usable) closed.push_back("/dev/" + one.name);
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

std::vector<Finding> check_gpus(const std::optional<GpusSeen>& seen, const Variables& variables) {
  if (!seen) {
    return {problem("GPUs", "NVIDIA's driver does not answer within " + std::to_string(kGpuPatience.count()) + " s",
                    "dmesg says why; often only a restart of the host helps")};
  }
  const int gpus = static_cast<int>(seen->gpus.size());
  const std::optional<host::GpuSetups> setups = gpus > 0 ? look_at_gpu_setups() : std::nullopt;
  CudaCheck cuda = gpus > 0 ? check_cuda(gpus, variables) : CudaCheck{};
  std::vector<Finding> result{judge_driver(look_at_driver(setups ? setups->driver : ""), gpus, cuda.version)};
  append_findings(result, judge_nodes(nvidia_nodes()));
  for (const std::string& text : seen->warnings) {
    result.push_back(warning("GPUs", text, "nvidia-smi and dmesg say more"));
  }
  if (gpus == 0) return result;
  for (const host::GpuInfo& one : seen->gpus) result.push_back(judge_gpu(one));
  append_findings(result, std::move(cuda.findings));
  if (setups) {
    append_findings(result, judge_setups(*setups));
    append_findings(result, judge_pairs(*setups, has_entries_in("/sys/class/iommu")));
  }
  if (std::optional<Finding> network = check_gpu_network()) result.push_back(std::move(*network));
  return result;
}

}  // namespace dtrain::run
