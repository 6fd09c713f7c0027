// What do CUDA's error codes mean?
#pragma once

namespace dtrain::test::fake_gpu {

// As cudaGetErrorString() of CUDA 13 says it.
const char* cuda_error_text(int code);

}  // namespace dtrain::test::fake_gpu
