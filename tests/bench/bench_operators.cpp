// Forward and backward of the operators that dtrain computes itself on CPUs, in turns with libtorch's.
//
//   bench_operators [--json] [--quick] [--threads 1]
//
// Cross entropy of 512 rows with vocabularies of 8,192 and 50,304, in float32 and, under autocast, in bfloat16; GELU of
// 512 x 5,120; causal attention of 20 heads of 64 numbers in bfloat16, over 128, 512 and 1,024 tokens; convolutions of
// 3x3 from and to 512 channels on 32 images of 2x2, and 256 channels on 8 images of 4x4, with channels last, as a
// ResNet on small images has. Prints medians in milliseconds and ratios (libtorch's over ours), also of forward and of
// backward alone.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "kernel_options.h"
#include "model/tensor_memory.h"
#include "numerics/matmul_path.h"
#include "numerics/own_operators.h"

namespace {

using namespace dtrain;
using Operator = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kRows = 512;

struct Times {
  double forward = 0, backward = 0;  // in milliseconds
};

Times step(const at::Tensor& from, const Operator& apply) {
  using Clock = std::chrono::steady_clock;
  const at::Tensor x = from.detach().requires_grad_();
  const auto began = Clock::now();
  const at::Tensor y = apply(x).sum();
  const auto middle = Clock::now();
  y.backward();
  const std::chrono::duration<double, std::milli> forward = middle - began, backward = Clock::now() - middle;
  return {forward.count(), backward.count()};
}

double median(const std::vector<Times>& all, const std::function<double(const Times&)>& of) {
  std::vector<double> values;
  for (const Times& one : all) values.push_back(of(one));
  return median_low(values);
}

Json compare(const at::Tensor& x, const Operator& ours, const Operator& libtorchs, int rounds) {
  std::vector<Times> own, peer;
  for (int round = 0; round < rounds + 2; ++round) {
    const Times a = step(x, ours), b = step(x, libtorchs);
    if (round < 2) continue;
    own.push_back(a);
    peer.push_back(b);
  }
  const auto both = [](const Times& times) { return times.forward + times.backward; };
  const auto forward = [](const Times& times) { return times.forward; };
  const auto backward = [](const Times& times) { return times.backward; };
  return {{"ours_ms", median(own, both)},
          {"libtorch_ms", median(peer, both)},
          {"ratio", median(peer, both) / median(own, both)},
          {"forward_ratio", median(peer, forward) / median(own, forward)},
          {"backward_ratio", median(peer, backward) / median(own, backward)}};
}

// libtorch's kernels below autograd, and its formula for the gradient: `at::gelu` itself is dtrain's here.
class LibtorchGelu : public torch::autograd::Function<LibtorchGelu> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::gelu(x, "tanh");
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::gelu_backward(gradients[0], context->get_saved_variables()[0], "tanh")};
  }
};

// The same of attention: `at::scaled_dot_product_attention` calls dtrain's gradient here.
class LibtorchAttention : public torch::autograd::Function<LibtorchAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [result, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(x, x, x, 0, true);
    context->save_for_backward({x, result, logsumexp});
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &of_result = gradients[0];
    const auto [of_query, of_key, of_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(of_result, x, x, x, saved[1], saved[2], 0, true);
    return {of_query + of_key + of_value};
  }
};

// And of a convolution of 3x3, with the gradients of images and weight.
class LibtorchConvolution : public torch::autograd::Function<LibtorchConvolution> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::convolution(x, weight, {}, kOnes, kOnes, kOnes, false, kZeros, 1);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto [of_x, of_weight, of_bias] = at::convolution_backward(
        gradients[0], saved[0], saved[1], std::nullopt, kOnes, kOnes, kOnes, false, kZeros, 1, {true, true, false});
    return {of_x, of_weight};
  }

 private:
  static constexpr std::int64_t kOnes[2] = {1, 1}, kZeros[2] = {0, 0};
};

struct Images {
  std::int64_t samples, channels, side;
};

Json compare_convolution(const Images& images, at::ScalarType type, int rounds) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const at::Tensor x =
      torch::randn({images.samples, images.channels, images.side, images.side}).to(type).contiguous(last);
  const at::Tensor weight =
      torch::randn({images.channels, images.channels, 3, 3}).to(type).contiguous(last).requires_grad_();
  return compare(
      x, [&](const at::Tensor& of) { return at::conv2d(of, weight, {}, 1, 1); },
      [&](const at::Tensor& of) { return LibtorchConvolution::apply(of, weight); }, rounds);
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::KernelOptions options = bench::kernel_options(argc, argv, "bench_operators");
  train::choose_matmul(config::Matmul::kAuto);  // as in a run
  train::TensorMemory::install();               // the same: freed pages stay
  train::use_own_operators();
  at::set_num_threads(options.threads);
  torch::manual_seed(1);
  Json result = {{"threads", options.threads}};
  for (const std::int64_t classes : {8192, 50304}) {
    const at::Tensor scores = torch::randn({kRows, classes}), target = torch::randint(0, classes, {kRows}, at::kLong);
    const auto ours = [&](const at::Tensor& x) { return at::cross_entropy_loss(x, target); };
    const auto libtorchs = [&](const at::Tensor& x) {
      return at::compositeimplicitautograd::cross_entropy_loss(x, target);
    };
    const std::string name = "cross_entropy_" + std::to_string(classes);
    result[name] = compare(scores, ours, libtorchs, options.rounds);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    result[name + "_bf16"] = compare(scores.to(at::kBFloat16), ours, libtorchs, options.rounds);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  for (const auto& [name, type] :
       {std::pair<const char*, at::ScalarType>{"gelu", at::kFloat}, {"gelu_bf16", at::kBFloat16}}) {
    result[name] = compare(
        torch::randn({kRows, 5120}).to(type), [](const at::Tensor& x) { return at::gelu(x, "tanh"); },
        [](const at::Tensor& x) { return LibtorchGelu::apply(x); }, options.rounds);
  }
  for (const std::int64_t tokens : {128, 512, 1024}) {
    result["attention_bf16_" + std::to_string(tokens)] = compare(
        torch::randn({1, 20, tokens, 64}).to(at::kBFloat16),
        [](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x, {}, 0, true); },
        [](const at::Tensor& x) { return LibtorchAttention::apply(x); }, options.rounds);
  }
  for (const auto& [name, type] : {std::pair<const char*, at::ScalarType>{"", at::kFloat}, {"_bf16", at::kBFloat16}}) {
    for (const Images images : {Images{32, 512, 2}, Images{8, 256, 4}}) {
      const std::string shape = std::to_string(images.channels) + "_of_" + std::to_string(images.side);
      result["convolution_" + shape + name] = compare_convolution(images, type, options.rounds);
    }
  }
  bench::print_result(result, options.json);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_operators: " << dtrain::describe(error) << "\n";
  return 1;
}
