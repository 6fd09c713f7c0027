// The module: the compiled kernels, and the calls of the CUDA runtime that load and launch them. It is linked with no
// library of CUDA, and looks up these functions in the runtime that libtorch's CUDA part computes with.
#include "device/kernels/module.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <string>

// The file that nvcc has written: the kernels for each kind of GPU, and as PTX for later ones.
asm(".section .rodata\n"
    ".balign 16\n"
    ".globl dtrain_kernels_image\n"
    ".hidden dtrain_kernels_image\n"
    "dtrain_kernels_image:\n"
    ".incbin \"" DTRAIN_KERNELS_IMAGE
    "\"\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char dtrain_kernels_image[];

namespace dtrain::train {
namespace {

// The functions of the CUDA runtime. The libtorch that dtrain finds may bring another version than these headers.
struct CudaRuntime {
  decltype(&cudaGetDevice) get_device;
  decltype(&cudaDeviceGetAttribute) get_attribute;
  decltype(&cudaGetErrorString) error_string;
  decltype(&cudaGetLastError) last_error;
  decltype(&cudaLibraryLoadData) load;
  decltype(&cudaLibraryGetKernel) get_kernel;
  decltype(&cudaFuncGetAttributes) get_attributes;
  decltype(&cudaLaunchKernel) launch;

  // Returns the first function that is not there; null: all are.
  const char* look_up() {
    void* const libtorch = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    const char* missing = nullptr;
    const auto find = [&](const char* name, auto& into) {
      void* const address = libtorch == nullptr ? nullptr : ::dlsym(libtorch, name);
      if (address == nullptr && missing == nullptr) missing = name;
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(address);
    };
    find("cudaGetDevice", get_device);
    find("cudaDeviceGetAttribute", get_attribute);
    find("cudaGetErrorString", error_string);
    find("cudaGetLastError", last_error);
    find("cudaLibraryLoadData", load);
    find("cudaLibraryGetKernel", get_kernel);
    find("cudaFuncGetAttributes", get_attributes);
    find("cudaLaunchKernel", launch);
    return missing;
  }
};

class LoadedKernels final : public DeviceKernels {
 public:
  // Returns what is wrong; empty: the kernels can be launched on the current device. They are loaded now, and not at
  // their first launch, which might be in a capture.
  std::string load() {
    if (const char* const missing = cuda_.look_up()) return std::string("its CUDA runtime has no ") + missing;
    int device = 0;
    cudaError_t error = cuda_.get_device(&device);
    if (error == cudaSuccess) {
      error = cuda_.get_attribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device);
    }
    cudaLibrary_t library{};
    if (error == cudaSuccess) {
      error = cuda_.load(&library, dtrain_kernels_image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }
    const auto get = [&](const char* name, cudaKernel_t& into) {
      if (error == cudaSuccess) error = cuda_.get_kernel(&into, library, name);
      cudaFuncAttributes attributes{};
      if (error == cudaSuccess) error = cuda_.get_attributes(&attributes, into);
    };
    get("dtrain_update_adam", update_adam_);
    get("dtrain_update_sgd", update_sgd_);
    get("dtrain_direct_lamb", direct_lamb_);
    get("dtrain_trust_lamb", trust_lamb_);
    get("dtrain_move_lamb", move_lamb_);
    get("dtrain_direct_muon", direct_muon_);
    get("dtrain_scale_muon", scale_muon_);
    get("dtrain_move_muon", move_muon_);
    get("dtrain_sum_squares", sum_squares_);
    get("dtrain_add_sums", add_sums_);
    get("dtrain_cross_entropy_float32", cross_entropy_float32_);
    get("dtrain_cross_entropy_bfloat16", cross_entropy_bfloat16_);
    get("dtrain_cross_entropy_gradient_float32", cross_entropy_gradient_float32_);
    get("dtrain_cross_entropy_gradient_bfloat16", cross_entropy_gradient_bfloat16_);
    const auto get_all = [&](const std::string& kind, const std::string& type, NormKernels& into) {
      get(("dtrain_" + kind + "_1_" + type).c_str(), into.of_1);
      get(("dtrain_" + kind + "_2_" + type).c_str(), into.of_2);
      get(("dtrain_" + kind + "_4_" + type).c_str(), into.of_4);
    };
    get_all("norm_gradient", "float32", norm_gradient_float32_);
    get_all("norm_gradient", "bfloat16", norm_gradient_bfloat16_);
    get_all("residual_norm_gradient", "float32", residual_norm_gradient_float32_);
    get_all("residual_norm_gradient", "bfloat16", residual_norm_gradient_bfloat16_);
    get_all("residual_norm_gradient", "mixed", residual_norm_gradient_mixed_);
    get_all("residual_norm", "float32", residual_norm_float32_);
    get_all("residual_norm", "bfloat16", residual_norm_bfloat16_);
    get_all("residual_norm", "mixed", residual_norm_mixed_);
    get("dtrain_add_norm_float32", add_norm_float32_);
    get("dtrain_add_norm_bfloat16", add_norm_bfloat16_);
    if (error == cudaSuccess) return "";
    static_cast<void>(cuda_.last_error());  // else libtorch would find it
    return cuda_.error_string(error);
  }

  int update_adam(const cuda::AdamArguments& arguments, void* stream) const override {
    return launch_update(update_adam_, arguments, stream);
  }
  int update_sgd(const cuda::SgdArguments& arguments, void* stream) const override {
    return launch_update(update_sgd_, arguments, stream);
  }
  int direct_lamb(const cuda::LambArguments& arguments, void* stream) const override {
    return launch_wave(direct_lamb_, cuda::parts_of_lamb(arguments), arguments, stream);
  }
  int trust_lamb(const cuda::LambArguments& arguments, void* stream) const override {
    return launch(trust_lamb_, arguments.parameters, arguments, stream);
  }
  int move_lamb(const cuda::LambArguments& arguments, void* stream) const override {
    return launch_wave(move_lamb_, cuda::parts_of_lamb(arguments), arguments, stream);
  }
  int direct_muon(const cuda::MuonArguments& arguments, void* stream) const override {
    return launch(direct_muon_, arguments.sum_blocks, arguments, stream);
  }
  int scale_muon(const cuda::MuonArguments& arguments, void* stream) const override {
    return launch_update(scale_muon_, arguments, stream);
  }
  int move_muon(const cuda::MuonArguments& arguments, void* stream) const override {
    return launch_update(move_muon_, arguments, stream);
  }
  int sum_squares(const cuda::SquaresArguments& arguments, int blocks, void* stream) const override {
    return launch(sum_squares_, blocks, arguments, stream);
  }
  int add_sums(const cuda::AddArguments& arguments, void* stream) const override {
    return launch(add_sums_, 1, arguments, stream);
  }
  int cross_entropy(const cuda::CrossEntropyArguments<float>& arguments, void* stream) const override {
    return launch(cross_entropy_float32_, blocks_of_rows(arguments.rows), arguments, stream);
  }
  int cross_entropy(const cuda::CrossEntropyArguments<std::uint16_t>& arguments, void* stream) const override {
    return launch(cross_entropy_bfloat16_, blocks_of_rows(arguments.rows), arguments, stream);
  }
  int cross_entropy_gradient(const cuda::CrossEntropyArguments<float>& arguments, void* stream) const override {
    return launch(cross_entropy_gradient_float32_, blocks_of_rows(arguments.rows), arguments, stream);
  }
  int cross_entropy_gradient(const cuda::CrossEntropyArguments<std::uint16_t>& arguments, void* stream) const override {
    return launch(cross_entropy_gradient_bfloat16_, blocks_of_rows(arguments.rows), arguments, stream);
  }
  int norm_gradient(const cuda::NormArguments<float>& arguments, void* stream) const override {
    return launch_norm(norm_gradient_float32_, arguments, stream);
  }
  int norm_gradient(const cuda::NormArguments<std::uint16_t>& arguments, void* stream) const override {
    return launch_norm(norm_gradient_bfloat16_, arguments, stream);
  }
  int norm_gradient(const cuda::NormArguments<float, float, true>& arguments, void* stream) const override {
    return launch_norm(residual_norm_gradient_float32_, arguments, stream);
  }
  int norm_gradient(const cuda::NormArguments<std::uint16_t, std::uint16_t, true>& arguments,
                    void* stream) const override {
    return launch_norm(residual_norm_gradient_bfloat16_, arguments, stream);
  }
  int norm_gradient(const cuda::NormArguments<float, std::uint16_t, true>& arguments, void* stream) const override {
    return launch_norm(residual_norm_gradient_mixed_, arguments, stream);
  }
  int residual_norm(const cuda::ResidualNormArguments<float>& arguments, void* stream) const override {
    return launch_norm(residual_norm_float32_, arguments, stream);
  }
  int residual_norm(const cuda::ResidualNormArguments<std::uint16_t>& arguments, void* stream) const override {
    return launch_norm(residual_norm_bfloat16_, arguments, stream);
  }
  int residual_norm(const cuda::ResidualNormArguments<float, std::uint16_t>& arguments, void* stream) const override {
    return launch_norm(residual_norm_mixed_, arguments, stream);
  }
  int add_norm(const cuda::AddNormArguments<float>& arguments, void* stream) const override {
    return launch(add_norm_float32_, blocks_of_add(arguments), arguments, stream);
  }
  int add_norm(const cuda::AddNormArguments<std::uint16_t>& arguments, void* stream) const override {
    return launch(add_norm_bfloat16_, blocks_of_add(arguments), arguments, stream);
  }
  std::string error_text(int code) const override { return cuda_.error_string(static_cast<cudaError_t>(code)); }

 private:
  // A kernel for each cuda::norm_packs().
  struct NormKernels {
    cudaKernel_t of_1, of_2, of_4;
  };

  static int blocks_of_rows(std::int64_t rows) { return static_cast<int>(std::min<std::int64_t>(rows, 1 << 20)); }

  template <class Arguments>
  int launch(cudaKernel_t kernel, int blocks, Arguments arguments, void* stream) const {
    void* pointers[] = {&arguments};
    const cudaError_t error = cuda_.launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(cuda::kThreads), pointers,
                                           0, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) static_cast<void>(cuda_.last_error());
    return error;
  }

  // Launches a kernel that runs with any number of blocks, on as many as are needed, and at most those of one wave: so
  // many blocks of 256 threads with 64 registers are on a multiprocessor at once.
  template <class Arguments>
  int launch_wave(cudaKernel_t kernel, std::int64_t needed, const Arguments& arguments, void* stream) const {
    constexpr std::int64_t kBlocksOfMultiprocessor = 4;
    return launch(kernel, static_cast<int>(std::min(needed, kBlocksOfMultiprocessor * multiprocessors_)), arguments,
                  stream);
  }
  template <class Arguments>
  int launch_update(cudaKernel_t kernel, const Arguments& arguments, void* stream) const {
    constexpr std::int64_t kElementsOfBlock = 4 * cuda::kThreads;
    return launch_wave(kernel, (arguments.flat.count + kElementsOfBlock - 1) / kElementsOfBlock, arguments, stream);
  }

  template <class Value>
  static int blocks_of_add(const cuda::AddNormArguments<Value>& arguments) {
    return cuda::blocks_of_add_norm(arguments.columns, arguments.of_bias != nullptr);
  }
  template <class Arguments>
  int launch_norm(const NormKernels& kernels, const Arguments& arguments, void* stream) const {
    const int packs = cuda::norm_packs(arguments.columns);
    return launch(packs == 1   ? kernels.of_1
                  : packs == 2 ? kernels.of_2
                               : kernels.of_4,
                  cuda::blocks_of_norm(arguments.rows, arguments.columns), arguments, stream);
  }

  CudaRuntime cuda_{};
  int multiprocessors_ = 0;
  cudaKernel_t update_adam_{}, update_sgd_{}, direct_lamb_{}, trust_lamb_{}, move_lamb_{}, direct_muon_{},
      scale_muon_{}, move_muon_{}, sum_squares_{}, add_sums_{}, cross_entropy_float32_{}, cross_entropy_bfloat16_{},
      cross_entropy_gradient_float32_{}, cross_entropy_gradient_bfloat16_{}, add_norm_float32_{}, add_norm_bfloat16_{};
  NormKernels norm_gradient_float32_{}, norm_gradient_bfloat16_{}, residual_norm_float32_{}, residual_norm_bfloat16_{},
      residual_norm_mixed_{}, residual_norm_gradient_float32_{}, residual_norm_gradient_bfloat16_{},
      residual_norm_gradient_mixed_{};
};

}  // namespace
}  // namespace dtrain::train

extern "C" int dtrain_cuda_kernels_make(int abi, std::unique_ptr<dtrain::train::DeviceKernels>& made,
                                        std::string& why) {
  if (abi != dtrain::train::kDeviceKernelsAbi) return dtrain::train::kDeviceKernelsAbi;
  auto kernels = std::make_unique<dtrain::train::LoadedKernels>();
  why = kernels->load();
  if (why.empty()) made = std::move(kernels);
  return 0;
}
