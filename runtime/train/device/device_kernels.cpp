#include "device/device_kernels.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "device/kernels/module.h"
#include "device/training_device.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::train {
namespace {

struct Kernels {
  std::unique_ptr<DeviceKernels> loaded;  // null: `why`
  std::string why;
};

Kernels load_kernels() {
  const OpenedModule opened = try_open_module({.name = "dtrain_cuda_kernels",
                                               .needs = {},
                                               .factory = kDeviceKernelsFactory,
                                               .what = "dtrain's kernels for GPUs",
                                               .remedy_needs = "",
                                               .remedy_module = "build dtrain with nvcc (docs/gpus.md)"});
  if (opened.factory == nullptr) return {nullptr, opened.why + ": " + opened.remedy};
  Kernels kernels;
  if (const int theirs =
          reinterpret_cast<DeviceKernelsFactory*>(opened.factory)(kDeviceKernelsAbi, kernels.loaded, kernels.why)) {
    kernels.why = "dtrain's kernels for GPUs are of another build: version " + std::to_string(theirs) +
                  " of the interface instead of " + std::to_string(kDeviceKernelsAbi);
  } else if (!kernels.why.empty()) {
    kernels.why = "this GPU does not run dtrain's kernels: " + kernels.why;
  }
  return kernels;
}

const Kernels& kernels() {
  static const Kernels& the = *new Kernels(load_kernels());  // the module is never closed
  return the;
}

bool are_float_on_gpu(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  });
}

// Null if the scalar is undefined.
const float* scalar_of(const at::Tensor& scalar) {
  return scalar.defined() ? scalar.const_data_ptr<float>() : nullptr;
}

void* stream_of(const at::Tensor& tensor) {
  return native_handle(current_stream(tensor.device()));
}

void check_launch(int error, const char* kernel) {
  if (error == 0) return;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, error,
                              std::string("CUDA error: ") + kernel + ": " + kernels().loaded->error_text(error));
}

}  // namespace

const std::string& why_no_device_kernels() {
  return kernels().why;
}

bool update_adam_on_device(cuda::AdamArguments arguments, const AdamTensors& tensors) {
  const auto& [values, gradients, states, shadow, number, rate, divisor, found_inf] = tensors;
  const at::ScalarType copied = shadow.defined() ? shadow.scalar_type() : at::kBFloat16;
  const bool narrow = gradients.scalar_type() == at::kBFloat16;
  if (!are_float_on_gpu({values, states[0], states[1]}) || (copied != at::kBFloat16 && copied != at::kHalf) ||
      !(narrow || gradients.scalar_type() == at::kFloat) || kernels().loaded == nullptr) {
    return false;
  }
  if (values.numel() == 0) return true;
  arguments.count = values.numel();
  arguments.values = values.mutable_data_ptr<float>();
  if (narrow) {
    arguments.narrow_gradients = static_cast<const std::uint16_t*>(gradients.const_data_ptr());
  } else {
    arguments.gradients = gradients.const_data_ptr<float>();
  }
  arguments.average = states[0].mutable_data_ptr<float>();
  arguments.square = states[1].mutable_data_ptr<float>();
  if (shadow.defined()) arguments.shadow = static_cast<std::uint16_t*>(shadow.mutable_data_ptr());
  arguments.shadow_is_float16 = copied == at::kHalf;
  arguments.number_on_device = scalar_of(number);
  arguments.rate_on_device = scalar_of(rate);
  arguments.divisor = scalar_of(divisor);
  arguments.found_inf = scalar_of(found_inf);
  check_launch(kernels().loaded->update_adam(arguments, stream_of(values)), "update_adam");
  return true;
}

std::optional<at::Tensor> sum_of_squares_on_device(at::TensorList tensors) {
  if (tensors.empty() || !are_float_on_gpu(tensors) || kernels().loaded == nullptr) return std::nullopt;
  // Each launch sums as many tensors as its arguments can name.
  std::vector<cuda::SquaresArguments> launches;
  std::vector<int> blocks;
  for (std::size_t begin = 0; begin < tensors.size(); begin += cuda::SquaresArguments::kMost) {
    const auto part =
        tensors.slice(begin, std::min<std::size_t>(cuda::SquaresArguments::kMost, tensors.size() - begin));
    cuda::SquaresArguments& arguments = launches.emplace_back();
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : part) {
      arguments.data[arguments.stretches] = tensor.const_data_ptr<float>();
      arguments.counts[arguments.stretches++] = tensor.numel();
      elements += tensor.numel();
    }
    blocks.push_back(cuda::blocks_of_squares(elements));
  }
  std::int64_t sums_needed = 0;
  for (const int of_launch : blocks) sums_needed += of_launch;
  const at::Tensor sums = at::empty({sums_needed}, tensors[0].options().dtype(at::kDouble));
  const at::Tensor result = at::empty({}, sums.options());
  auto* place = sums.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < launches.size(); ++i) {
    launches[i].sums = std::exchange(place, place + blocks[i]);
    check_launch(kernels().loaded->sum_squares(launches[i], blocks[i], stream_of(sums)), "sum_squares");
  }
  check_launch(kernels().loaded->add_sums(
                   {sums.const_data_ptr<double>(), sums_needed, result.mutable_data_ptr<double>()}, stream_of(sums)),
               "add_sums");
  return result;
}

}  // namespace dtrain::train
