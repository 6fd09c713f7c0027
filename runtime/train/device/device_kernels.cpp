#include "device/device_kernels.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "device/kernels/module.h"
#include "device/training_device.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::train {
namespace {

struct LoadedModule {
  std::unique_ptr<DeviceKernels> loaded;  // null: `why`
  std::string why;
};

LoadedModule load_kernels() {
  const OpenedModule opened = try_open_module({.name = "dtrain_cuda_kernels",
                                               .needs = {},
                                               .factory = kDeviceKernelsFactory,
                                               .what = "dtrain's kernels for GPUs",
                                               .remedy_needs = "",
                                               .remedy_module = "build dtrain with nvcc (docs/gpus.md)"});
  if (opened.factory == nullptr) return {nullptr, opened.why + ": " + opened.remedy};
  LoadedModule kernels;
  if (const int theirs =
          reinterpret_cast<DeviceKernelsFactory*>(opened.factory)(kDeviceKernelsAbi, kernels.loaded, kernels.why)) {
    kernels.why = "dtrain's kernels for GPUs are of another build: version " + std::to_string(theirs) +
                  " of the interface instead of " + std::to_string(kDeviceKernelsAbi);
  } else if (!kernels.why.empty()) {
    kernels.why = "this GPU does not run dtrain's kernels: " + kernels.why;
  }
  return kernels;
}

const LoadedModule& loaded_kernels() {
  static const LoadedModule& the = *new LoadedModule(load_kernels());  // the module is never closed
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
                              std::string("CUDA error: ") + kernel + ": " + loaded_kernels().loaded->error_text(error));
}

// True if kernels can make the update.
bool fit_kernels(const UpdateTensors& tensors) {
  const at::ScalarType gradient = tensors.gradients.scalar_type();
  const at::ScalarType copied = tensors.shadow.defined() ? tensors.shadow.scalar_type() : at::kBFloat16;
  return are_float_on_gpu(tensors.values) && are_float_on_gpu(tensors.states) &&
         (gradient == at::kFloat || gradient == at::kBFloat16) && (copied == at::kBFloat16 || copied == at::kHalf) &&
         loaded_kernels().loaded != nullptr;
}

void set_flat(cuda::FlatArguments& flat, const UpdateTensors& tensors) {
  flat.count = tensors.values.numel();
  flat.values = tensors.values.mutable_data_ptr<float>();
  if (tensors.gradients.scalar_type() == at::kBFloat16) {
    flat.narrow_gradients = static_cast<const std::uint16_t*>(tensors.gradients.const_data_ptr());
  } else {
    flat.gradients = tensors.gradients.const_data_ptr<float>();
  }
  if (tensors.shadow.defined()) flat.shadow = static_cast<std::uint16_t*>(tensors.shadow.mutable_data_ptr());
  flat.shadow_is_float16 = tensors.shadow.defined() && tensors.shadow.scalar_type() == at::kHalf;
  flat.number_on_device = scalar_of(tensors.number_on_device);
  flat.rate_on_device = scalar_of(tensors.rate_on_device);
  flat.divisor = scalar_of(tensors.divisor);
  flat.found_inf = scalar_of(tensors.found_inf);
  flat.number = tensors.number;
  flat.rate = tensors.rate;
}

// Returns the elements from `begin` on.
cuda::FlatArguments behind(cuda::FlatArguments flat, std::int64_t begin) {
  flat.count -= begin;
  flat.values += begin;
  if (flat.gradients) flat.gradients += begin;
  if (flat.narrow_gradients) flat.narrow_gradients += begin;
  if (flat.shadow) flat.shadow += begin;
  return flat;
}

template <class Score>
cuda::CrossEntropyArguments<Score> arguments_of(const at::Tensor& scores, const at::Tensor& target,
                                                const at::Tensor& sums, std::int64_t ignored, double smoothing) {
  cuda::CrossEntropyArguments<Score> arguments;
  arguments.rows = scores.size(0);
  arguments.classes = scores.size(1);
  arguments.scores = static_cast<const Score*>(scores.const_data_ptr());
  arguments.targets = target.const_data_ptr<std::int64_t>();
  arguments.ignored = ignored;
  arguments.smoothing = static_cast<float>(smoothing);
  arguments.sums = sums.mutable_data_ptr<float>();
  return arguments;
}

// Calls `function` with a value of the type in which kernels take the tensor's elements.
template <class Function>
void with_type_of(const at::Tensor& tensor, const Function& function) {
  if (tensor.scalar_type() == at::kBFloat16) {
    function(std::uint16_t());
  } else {
    function(float());
  }
}

// The same for two tensors of one type, or of float32 and bfloat16.
template <class Function>
void with_types_of(const at::Tensor& first, const at::Tensor& second, const Function& function) {
  if (first.scalar_type() == second.scalar_type()) {
    with_type_of(first, [&](auto value) { function(value, value); });
  } else {
    function(float(), std::uint16_t());
  }
}

struct NormGradients {
  at::Tensor of_inputs;
  at::Tensor copy;  // of of_inputs, in the type of the results; undefined if the types are the same
  at::Tensor of_weight, of_bias;
};

// `added` to the gradient of the inputs `x`, `mean` and, without `bias`, of_bias may be undefined.
template <class Value, class Result, bool residual>
NormGradients norm_gradients(const at::Tensor& of_result, const at::Tensor& added, const at::Tensor& x,
                             const at::Tensor& mean, const at::Tensor& reciprocal, const at::Tensor& weight,
                             bool bias) {
  const std::int64_t columns = weight.numel(), rows = x.numel() / columns;
  const std::int64_t parts = cuda::norm_parts(rows, columns);
  NormGradients made{at::empty_like(x), {}, at::empty_like(weight), {}};
  if (!std::is_same_v<Value, Result>) made.copy = at::empty_like(of_result);
  if (bias) made.of_bias = at::empty_like(weight);
  const at::Tensor sums = at::empty({parts, 2, columns}, x.options().dtype(at::kFloat));
  cuda::NormArguments<Value, Result, residual> arguments;
  arguments.rows = rows;
  arguments.columns = columns;
  arguments.inputs = static_cast<const Value*>(x.const_data_ptr());
  arguments.of_results = static_cast<const Result*>(of_result.const_data_ptr());
  arguments.weight = static_cast<const Value*>(weight.const_data_ptr());
  if (mean.defined()) arguments.means = mean.const_data_ptr<float>();
  arguments.reciprocals = reciprocal.const_data_ptr<float>();
  if (added.defined()) arguments.added = static_cast<const Value*>(added.const_data_ptr());
  arguments.gradient = static_cast<Value*>(made.of_inputs.mutable_data_ptr());
  if (made.copy.defined()) arguments.copy = static_cast<Result*>(made.copy.mutable_data_ptr());
  arguments.sums = sums.mutable_data_ptr<float>();
  check_launch(loaded_kernels().loaded->norm_gradient(arguments, stream_of(x)), "norm_gradient");
  cuda::AddNormArguments<Value> of_parameters;
  of_parameters.sums = arguments.sums;
  of_parameters.parts = parts;
  of_parameters.columns = columns;
  of_parameters.of_weight = static_cast<Value*>(made.of_weight.mutable_data_ptr());
  if (bias) of_parameters.of_bias = static_cast<Value*>(made.of_bias.mutable_data_ptr());
  check_launch(loaded_kernels().loaded->add_norm(of_parameters, stream_of(x)), "add_norm");
  return made;
}

}  // namespace

const std::string& why_no_device_kernels() {
  return loaded_kernels().why;
}

bool update_adam_on_device(cuda::AdamArguments arguments, const UpdateTensors& tensors) {
  if (!fit_kernels(tensors)) return false;
  if (tensors.values.numel() == 0) return true;
  set_flat(arguments.flat, tensors);
  arguments.average = tensors.states[0].mutable_data_ptr<float>();
  arguments.square = tensors.states[1].mutable_data_ptr<float>();
  check_launch(loaded_kernels().loaded->update_adam(arguments, stream_of(tensors.values)), "update_adam");
  return true;
}

bool update_sgd_on_device(cuda::SgdArguments arguments, const UpdateTensors& tensors) {
  if (!fit_kernels(tensors)) return false;
  if (tensors.values.numel() == 0) return true;
  set_flat(arguments.flat, tensors);
  if (!tensors.states.empty()) arguments.momentum = tensors.states[0].mutable_data_ptr<float>();
  check_launch(loaded_kernels().loaded->update_sgd(arguments, stream_of(tensors.values)), "update_sgd");
  return true;
}

bool update_lamb_on_device(cuda::LambArguments arguments, std::span<const std::int64_t> ends,
                           const UpdateTensors& tensors) {
  if (!fit_kernels(tensors)) return false;
  cuda::LambArguments all = arguments;
  set_flat(all.flat, tensors);
  const auto stream = stream_of(tensors.values);
  const auto options = tensors.values.options().dtype(at::kDouble);
  std::int64_t begin = 0;
  while (!ends.empty()) {
    const auto of_launch = ends.first(std::min<std::size_t>(ends.size(), cuda::LambArguments::kMost));
    ends = ends.subspan(of_launch.size());
    arguments.flat = behind(all.flat, begin);
    arguments.average = tensors.states[0].mutable_data_ptr<float>() + begin;
    arguments.square = tensors.states[1].mutable_data_ptr<float>() + begin;
    arguments.parameters = 0;
    for (const std::int64_t end : of_launch) cuda::add_lamb_parameter(arguments, end - begin);
    const std::int64_t parts = cuda::parts_of_lamb(arguments);
    const at::Tensor sums = at::empty({2 * parts}, options), trusts = at::empty({arguments.parameters}, options);
    arguments.sums = sums.mutable_data_ptr<double>();
    arguments.trusts = trusts.mutable_data_ptr<double>();
    check_launch(loaded_kernels().loaded->direct_lamb(arguments, stream), "direct_lamb");
    check_launch(loaded_kernels().loaded->trust_lamb(arguments, stream), "trust_lamb");
    check_launch(loaded_kernels().loaded->move_lamb(arguments, stream), "move_lamb");
    begin = of_launch.back();
  }
  return true;
}

std::optional<at::Tensor> muon_direction_on_device(cuda::MuonArguments arguments, const UpdateTensors& tensors) {
  if (!fit_kernels(tensors)) return std::nullopt;
  at::Tensor direction = at::empty_like(tensors.values, at::TensorOptions().dtype(at::kBFloat16));
  if (direction.numel() == 0) return direction;
  set_flat(arguments.flat, tensors);
  arguments.average = tensors.states[0].mutable_data_ptr<float>();
  arguments.direction = static_cast<std::uint16_t*>(direction.mutable_data_ptr());
  arguments.sum_blocks = cuda::blocks_of_squares(direction.numel());
  const at::Tensor sums = at::empty({arguments.sum_blocks}, tensors.values.options().dtype(at::kDouble));
  arguments.sums = sums.mutable_data_ptr<double>();
  check_launch(loaded_kernels().loaded->direct_muon(arguments, stream_of(direction)), "direct_muon");
  check_launch(loaded_kernels().loaded->scale_muon(arguments, stream_of(direction)), "scale_muon");
  return direction;
}

void move_muon_on_device(cuda::MuonArguments arguments, const at::Tensor& step, const UpdateTensors& tensors) {
  if (step.numel() == 0) return;
  set_flat(arguments.flat, tensors);
  arguments.flat.count = step.numel();  // without padding
  arguments.direction = static_cast<std::uint16_t*>(step.mutable_data_ptr());
  check_launch(loaded_kernels().loaded->move_muon(arguments, stream_of(step)), "move_muon");
}

std::optional<at::Tensor> sum_of_squares_on_device(at::TensorList tensors) {
  if (tensors.empty() || !are_float_on_gpu(tensors) || loaded_kernels().loaded == nullptr) return std::nullopt;
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
    check_launch(loaded_kernels().loaded->sum_squares(launches[i], blocks[i], stream_of(sums)), "sum_squares");
  }
  check_launch(loaded_kernels().loaded->add_sums(
                   {sums.const_data_ptr<double>(), sums_needed, result.mutable_data_ptr<double>()}, stream_of(sums)),
               "add_sums");
  return result;
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_on_device(const at::Tensor& scores, const at::Tensor& target,
                                                           std::int64_t ignored, double smoothing) {
  const at::Tensor losses = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  const at::Tensor sums = at::empty({scores.size(0), 2}, losses.options());
  if (losses.numel() == 0) return {losses, sums};
  with_type_of(scores, [&]<class Score>(Score) {
    auto arguments = arguments_of<Score>(scores, target, sums, ignored, smoothing);
    arguments.losses = losses.mutable_data_ptr<float>();
    check_launch(loaded_kernels().loaded->cross_entropy(arguments, stream_of(scores)), "cross_entropy");
  });
  return {losses, sums};
}

at::Tensor cross_entropy_gradient_on_device(const at::Tensor& of_losses, const at::Tensor& scores,
                                            const at::Tensor& target, const at::Tensor& sums, std::int64_t ignored,
                                            double smoothing) {
  at::Tensor gradient = at::empty_like(scores, at::MemoryFormat::Contiguous);
  write_cross_entropy_gradient_on_device(gradient, of_losses, scores, target, sums, ignored, smoothing);
  return gradient;
}

void write_cross_entropy_gradient_on_device(const at::Tensor& gradient, const at::Tensor& of_losses,
                                            const at::Tensor& scores, const at::Tensor& target, const at::Tensor& sums,
                                            std::int64_t ignored, double smoothing) {
  if (gradient.numel() == 0) return;
  with_type_of(scores, [&]<class Score>(Score) {
    auto arguments = arguments_of<Score>(scores, target, sums, ignored, smoothing);
    arguments.of_losses = of_losses.const_data_ptr<float>();
    arguments.gradient = static_cast<Score*>(gradient.mutable_data_ptr());
    check_launch(loaded_kernels().loaded->cross_entropy_gradient(arguments, stream_of(scores)),
                 "cross_entropy_gradient");
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_gradient_on_device(const at::Tensor& of_result, const at::Tensor& x,
                                                                       const std::optional<at::Tensor>& mean,
                                                                       const at::Tensor& reciprocal,
                                                                       const at::Tensor& weight, bool bias) {
  NormGradients gradients;
  with_type_of(x, [&]<class Value>(Value) {
    gradients =
        norm_gradients<Value, Value, false>(of_result, {}, x, mean.value_or(at::Tensor()), reciprocal, weight, bias);
  });
  return {gradients.of_inputs, gradients.of_weight, gradients.of_bias};
}

ResidualNorm residual_norm_on_device(const at::Tensor& residual, const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& bias, double eps, bool rms) {
  const at::TensorOptions of_rows = residual.options().dtype(at::kFloat);
  const std::int64_t columns = weight.numel(), rows = residual.numel() / columns;
  ResidualNorm made{at::empty_like(residual), at::empty_like(input), rms ? at::Tensor() : at::empty({rows}, of_rows),
                    at::empty({rows}, of_rows)};
  with_types_of(residual, input, [&]<class Value, class Result>(Value, Result) {
    cuda::ResidualNormArguments<Value, Result> arguments;
    arguments.rows = rows;
    arguments.columns = columns;
    arguments.residual = static_cast<const Value*>(residual.const_data_ptr());
    arguments.inputs = static_cast<const Result*>(input.const_data_ptr());
    arguments.weight = static_cast<const Value*>(weight.const_data_ptr());
    if (bias.defined()) arguments.bias = static_cast<const Value*>(bias.const_data_ptr());
    arguments.eps = static_cast<float>(eps);
    arguments.sums = static_cast<Value*>(made.sum.mutable_data_ptr());
    arguments.results = static_cast<Result*>(made.normalized.mutable_data_ptr());
    if (!rms) arguments.means = made.mean.mutable_data_ptr<float>();
    arguments.reciprocals = made.reciprocal.mutable_data_ptr<float>();
    check_launch(loaded_kernels().loaded->residual_norm(arguments, stream_of(residual)), "residual_norm");
  });
  return made;
}

ResidualNormGradients residual_norm_gradient_on_device(const at::Tensor& of_normalized, const at::Tensor& of_sum,
                                                       const ResidualNorm& norm, const at::Tensor& weight, bool bias) {
  NormGradients gradients;
  with_types_of(norm.sum, of_normalized, [&]<class Value, class Result>(Value, Result) {
    gradients =
        norm_gradients<Value, Result, true>(of_normalized, of_sum, norm.sum, norm.mean, norm.reciprocal, weight, bias);
  });
  return {gradients.of_inputs, gradients.copy.defined() ? gradients.copy : gradients.of_inputs, gradients.of_weight,
          gradients.of_bias};
}

}  // namespace dtrain::train
