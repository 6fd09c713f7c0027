// What a probe of CUDA's libraries means.
#include "doctor/gpu_checks.h"
#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

constexpr int kOldestNccl = 22800;
constexpr const char* kGetFullLibtorch =
    "get libtorch with the GPU libraries: dtrain-get-libtorch --flavour full; or set DTRAIN_LIBTORCH_DIR to the "
    "'torch' "
    "folder of a PyTorch for CUDA 13 (pip install torch==" DTRAIN_LIBTORCH ".0)";

// What to do where CUDA does not start.
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
  std::string text = version + "shows a process " + std::to_string(probe.gpus) + " of " + std::to_string(gpus) +
                     (gpus == 1 ? " GPU" : " GPUs");
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
