// Tests whether a rank could open the libraries for training on GPUs: libtorch_cuda, CUDA's runtime and NCCL. Another
// process of dtrain tries it (`dtrain cuda-probe`), because the libraries take some 100 MB of memory, and because CUDA
// may never answer if a driver hangs.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/rank/environment.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
