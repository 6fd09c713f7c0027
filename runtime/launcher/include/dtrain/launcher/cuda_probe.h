// `dtrain cuda-probe`, which `dtrain doctor` starts: it opens libtorch_cuda, CUDA's runtime and NCCL as a rank would,
// and prints what it has found as one JSON object.
#pragma once

#include <string>

namespace dtrain::run {

// `libtorch`: the folder of libtorch's libraries; may be empty. Ends the process, with exit code 0.
[[noreturn]] void cuda_probe(const std::string& libtorch);

}  // namespace dtrain::run
