// Tests whether a rank could open the libraries for training on GPUs: libtorch_cuda, CUDA's runtime and NCCL. Another
// process of dtrain tries it (`dtrain cuda-probe`), because the libraries take some 100 MB of memory, and because CUDA
// may never answer if a driver hangs.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "dtrain/base/json.h"
#include "dtrain/host/gpu_setup.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/gpus_seen.h"

namespace dtrain::launcher {

struct ProbedLibrary {
  std::string path;   // of the file that was opened; empty: none could be
  std::string error;  // the dynamic linker's reason
  int version = 0;    // as the library reports it: 13000 (CUDA), 22809 (NCCL); 0: not asked, or not known
};

struct CudaProbe {
  ProbedLibrary libtorch_cuda;
  ProbedLibrary cuda;  // its runtime
  ProbedLibrary nccl;
  int gpus = 0;            // that CUDA shows to a process
  int error = 0;           // CUDA's code where it does not start, else 0
  std::string error_text;  // CUDA's words for it
};

// The order in which the process tries libraries: each name as the dynamic linker finds it, then each file that exists.
struct CudaCandidates {
  std::vector<std::string> libtorch_cuda;
  std::vector<std::string> cuda;
  std::vector<std::string> nccl;
};
// Returns the candidates in the order of ranks: by name, then beside libtorch_cpu.so (`libtorch`, the folder of
// libtorch's libraries), and in the wheels beside libtorch.
CudaCandidates cuda_candidates(const std::filesystem::path& libtorch);

std::string nccl_version(int code);  // 22809: "2.28.9"

Json to_json(const CudaProbe& probe);
CudaProbe cuda_probe_of(const Json& json);  // Json::exception if it is malformed

// Opens the libraries in this process and asks them.
CudaProbe probe_cuda_here(const CudaCandidates& candidates);

inline constexpr std::chrono::seconds kCudaPatience{20};  // without persistence mode, drivers take seconds to start

// Has a process of dtrain probe, with the library path that ranks get (empty: this process's own). Empty: it did not
// answer within kCudaPatience, or it died; `failure` then says which.
std::optional<CudaProbe> probe_cuda(const std::filesystem::path& libtorch, const std::string& library_path,
                                    std::string& failure);

// The checks of `dtrain doctor` on GPUs: their driver and the libraries that use them, how they are set up, and how
// they are joined. The judge_ functions take what was seen, so that tests can show them any machine. One thread.

// Returns the name of GPUs in findings: "GPU 3", "GPUs 0-3, 6"; indices in ascending order.
std::string name_gpus(const std::vector<int>& indices);
// Returns the list that nvidia-smi -i takes: "0", "0,1,2".
std::string list_gpus(const std::vector<int>& indices);

// Runs all checks of GPUs. On a machine without GPUs a single finding says so.
std::vector<Finding> check_gpus(const std::optional<rank::GpusSeen>& seen, const rank::Variables& variables);

// The facts about NVIDIA's driver and devices besides the GPUs that NVML lists.
struct DriverSeen {
  int devices = 0;       // of NVIDIA on the bus
  bool library = false;  // libcuda.so.1 can be opened
  int cuda = 0;          // the newest CUDA that it supports: 13000; 0: it reports none
  std::string version;   // of the driver; empty: not reported
};
inline constexpr int kCudaOfLibtorch = 13000;  // that dtrain-get-libtorch gets
// `gpus`: the number that NVML lists; `cuda`: the version for which libtorch is built. Returns one finding.
Finding judge_driver(const DriverSeen& driver, int gpus, int cuda = kCudaOfLibtorch);

struct DeviceNode {
  std::string name;  // "nvidia0", "nvidiactl", "nvidia-uvm"
  bool usable = false;
};
// Returns the nodes of NVIDIA in /dev.
std::vector<DeviceNode> nvidia_nodes(const std::filesystem::path& folder = "/dev");
// Findings only where something is wrong.
std::vector<Finding> judge_nodes(const std::vector<DeviceNode>& nodes);

// Judges a GPU by itself: which GPU it is, and whether it can be used.
Finding judge_gpu(const host::GpuInfo& gpu);

// `missing`: libraries that libtorch_cuda.so links and that are not found. `gpus`: how many NVML lists.
// `visible`: the value of CUDA_VISIBLE_DEVICES, if it is set.
std::vector<Finding> judge_cuda(const CudaProbe& probe, const std::vector<std::string>& missing, int gpus,
                                const std::optional<std::string>& visible);

// The first function judges the setup of GPUs: modes, clocks, memory, other processes. The second one judges the
// connections between them. `iommu`: the machine has one that is on.
std::vector<Finding> judge_setups(const host::GpuSetups& setups);
std::vector<Finding> judge_pairs(const host::GpuSetups& setups, bool iommu);

// Checks the way of GPUs to InfiniBand; none without InfiniBand. `root` is the folder that contains proc/ and sys/.
std::optional<Finding> check_gpu_network(const std::filesystem::path& root = "/");

}  // namespace dtrain::launcher
