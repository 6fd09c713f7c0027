// dtrain's own kernels for GPUs (docs/gpus.md) against libtorch's operators: results, times, and the share of the rate
// at which the GPU copies memory.
//
//   bench_gpu_kernels [DIVISOR]
//
// GPT-2's sizes: 124 million parameters, 8 x 1,024 rows of 50,257 scores in bfloat16, and of 768 and 2,048 values in
// float32 for the gradient of layer norm, and of 768 and 2,048 values for a residual in float32 and a layer in
// bfloat16, their sum and its norm, and attention of 8 x 1,024 tokens; divided by DIVISOR. Exit codes: 0 all results
// are near libtorch's, 1 one is not, or there are no kernels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <c10/core/Event.h>
#include <torch/torch.h>

#include "device/device_kernels.h"
#include "device/training_device.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/config/optimizers.h"
#include "dtrain/train/add_norm.h"
#include "dtrain/train/linear_cross_entropy.h"
#include "model/optimizer_update.h"
#include "model/precision.h"
#include "numerics/own_operators.h"

namespace {

using namespace dtrain;

constexpr int kRuns = 20;

// Returns the mean time of a call in seconds, by events of the GPU.
double seconds_of(c10::Device gpu, const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(train::current_stream(gpu));
  for (int i = 0; i < kRuns; ++i) call();
  end.record(train::current_stream(gpu));
  end.synchronize();
  return begin.elapsedTime(end) / 1000 / kRuns;
}

double difference(const at::Tensor& ours, const at::Tensor& libtorchs) {
  const at::Tensor a = ours.to(at::kDouble), b = libtorchs.to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}

class Bench {
 public:
  explicit Bench(c10::Device gpu) : gpu_(gpu) {}
  bool all_near() const { return all_near_; }

  void measure_copies(std::int64_t elements) {
    const at::Tensor from = at::zeros({elements}, gpu_), to = at::empty_like(from);
    rate_ = 8.0 * static_cast<double>(elements) / seconds_of(gpu_, [&] { to.copy_(from); });
    std::printf("copies: %.0f GB/s\n", rate_ / 1e9);
  }
  // `bytes`: what the kernel has to read and write.
  void compare(const std::string& name, double bytes, double difference, double limit,
               const std::function<void()>& ours, const std::function<void()>& libtorchs) {
    const double own = seconds_of(gpu_, ours), peer = seconds_of(gpu_, libtorchs);
    std::printf("%-14s %8.3f ms, %3.0f%% of the copies' rate", name.c_str(), own * 1e3, 100 * bytes / rate_ / own);
    print_peer(own, peer, difference, limit);
  }
  // The same where products of matrices take most of the time: `operations` in floating point.
  void compare_products(const std::string& name, double operations, double difference, double limit,
                        const std::function<void()>& ours, const std::function<void()>& libtorchs) {
    compare_products(name, operations, difference, limit, ours, seconds_of(gpu_, libtorchs));
  }
  void compare_products(const std::string& name, double operations, double difference, double limit,
                        const std::function<void()>& ours, double peer) {
    const double own = seconds_of(gpu_, ours);
    std::printf("%-14s %8.3f ms, %.0f TFLOP/s", name.c_str(), own * 1e3, operations / own / 1e12);
    print_peer(own, peer, difference, limit);
  }

 private:
  void print_peer(double own, double peer, double difference, double limit) {
    const bool near = difference <= limit;
    std::printf("; libtorch %8.3f ms (%.2fx); differs by %.1e%s\n", peer * 1e3, peer / own, difference,
                near ? "" : ": too much");
    all_near_ = all_near_ && near;
  }

  const c10::Device gpu_;
  double rate_ = 1;
  bool all_near_ = true;
};

// An update that divides gradients and writes a copy in bfloat16, as with mixed_precision: bf16.
class Updated {
 public:
  Updated(const at::Tensor& initial, const at::Tensor& gradients)
      : values(initial.clone()),
        gradients(gradients.clone()),
        first(at::zeros_like(values)),
        second(at::zeros_like(values)),
        shadow(values.to(at::kBFloat16)) {
    step.device.divisor = at::full({}, 2.0, values.options());
    step.number = at::ones({}, values.options());
    step.shadow = shadow;
  }
  double difference_from(const Updated& other) const {
    return std::max(difference(values, other.values), difference(shadow, other.shadow));
  }

  at::Tensor values, gradients, first, second, shadow;
  train::UpdateStep step;
};

// By `ours` against `theirs`, each a function of an Updated. `bytes`: of a parameter.
void measure_update(Bench& bench, c10::Device gpu, const std::string& name, std::int64_t parameters, double bytes,
                    double limit, const std::function<void(Updated&)>& ours,
                    const std::function<void(Updated&)>& theirs) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = at::randn({parameters}, gpu), gradients = at::randn({parameters}, gpu);
  Updated own(values, gradients), peer(values, gradients);
  ours(own);
  theirs(peer);
  const double differs = own.difference_from(peer);
  bench.compare(
      name, bytes * static_cast<double>(parameters), differs, limit, [&] { ours(own); }, [&] { theirs(peer); });
}

void measure_adamw(Bench& bench, c10::Device gpu, std::int64_t parameters) {
  const AdamW settings;
  const auto update = settings.make_update();
  measure_update(
      bench, gpu, "update_adam", parameters, 30, 1e-4,
      [&](Updated& u) {
        u.step.rate = settings.lr;
        update->update(u.values, u.gradients, {u.first, u.second}, u.step);
      },
      [&](Updated& u) {
        at::_fused_adamw_(u.values, u.gradients, u.first, u.second, {}, u.step.number, settings.lr, settings.beta1,
                          settings.beta2, settings.weight_decay, settings.eps, false, false, u.step.device.divisor);
        u.shadow.copy_(u.values);
      });
}

void measure_sgd(Bench& bench, c10::Device gpu, std::int64_t parameters) {
  const Sgd settings{.momentum = 0.9, .weight_decay = 1e-4, .nesterov = true};
  const auto update = settings.make_update();
  constexpr double kRate = 1e-3;
  measure_update(
      bench, gpu, "update_sgd", parameters, 22, 1e-4,
      [&](Updated& u) {
        u.step.rate = kRate;
        u.step.updates = 1;
        update->update(u.values, u.gradients, {u.first}, u.step);
      },
      [&](Updated& u) {
        at::_fused_sgd_(u.values, u.gradients, u.first, settings.weight_decay, settings.momentum, kRate,
                        settings.dampening, settings.nesterov, false, false, u.step.device.divisor);
        u.shadow.copy_(u.values);
      });
}

// A call for all parameters of GPT-2's shapes, against one for each in the way of libtorch's operators.
void measure_lamb(Bench& bench, c10::Device gpu, std::int64_t parameters) {
  const Lamb settings;
  const auto update = settings.make_update();
  constexpr double kRate = 1e-3;
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const std::int64_t share : {40, 1, 1, 8, 8, 2, 2, 8, 8, 8, 8, 2, 2, 1, 1}) {
    ends.push_back(end += std::max<std::int64_t>(1, parameters * share / 100 / 16) * 16);
  }
  measure_update(
      bench, gpu, "lamb", end, 42, 1e-4,
      [&](Updated& u) {
        u.step.rate = kRate;
        update->update_several(u.values, u.gradients, {u.first, u.second}, u.step, ends);
      },
      [&](Updated& u) {
        std::int64_t begin = 0;
        for (const std::int64_t next : ends) {
          const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, next - begin); };
          const at::Tensor gradient = part(u.gradients) / u.step.device.divisor;
          const at::Tensor average = part(u.first), square = part(u.second), values = part(u.values);
          average.lerp_(gradient, 1 - settings.beta1);
          square.mul_(settings.beta2).addcmul_(gradient, gradient, 1 - settings.beta2);
          at::Tensor direction = average / (1 - settings.beta1);
          direction.div_((square / (1 - settings.beta2)).sqrt_().add_(settings.eps));
          direction.add_(values, settings.weight_decay);
          direction.mul_(values.norm() / direction.norm());
          values.sub_(direction, kRate);
          part(u.shadow).copy_(values);
          begin = next;
        }
      });
}

// Without the products: a matrix of GPT-2's width, whose step is its direction.
void measure_muon(Bench& bench, c10::Device gpu, std::int64_t parameters) {
  constexpr double kRate = 1e-2;
  const train::cuda::MuonArguments settings{.momentum = 0.95, .nesterov = true, .weight_decay = 0.1, .scale = 1};
  measure_update(
      bench, gpu, "muon", parameters, 30, 1e-2,
      [&](Updated& u) {
        u.step.rate = kRate;
        const std::vector<at::Tensor> states{u.first};
        const auto tensors = train::tensors_for_kernels(u.values, u.gradients, states, u.step);
        train::move_muon_on_device(settings, train::muon_direction_on_device(settings, tensors).value(), tensors);
      },
      [&](Updated& u) {
        const at::Tensor gradient = u.gradients / u.step.device.divisor;
        u.first.lerp_(gradient, 1 - settings.momentum);
        const at::Tensor direction = gradient.lerp(u.first, settings.momentum).to(at::kBFloat16);
        direction.div_(direction.norm().clamp_min_(1e-7));
        u.values.mul_(1 - kRate * settings.weight_decay);
        u.values.sub_(direction.to(at::kFloat), kRate);
        u.shadow.copy_(u.values);
      });
}

void measure_norm(Bench& bench, c10::Device gpu, std::int64_t parameters) {
  const at::Tensor gradients = at::randn({parameters}, gpu);
  const at::Tensor own = train::sum_of_squares_on_device(gradients).value();
  bench.compare(
      "sum_squares", 4.0 * static_cast<double>(parameters), difference(own, gradients.to(at::kDouble).square().sum()),
      1e-6, [&] { static_cast<void>(train::sum_of_squares_on_device(gradients)); },
      [&] { static_cast<void>(at::_foreach_norm(gradients, 2)); });
}

void measure_cross_entropy(Bench& bench, c10::Device gpu, std::int64_t rows) {
  constexpr std::int64_t kClasses = 50'257;
  const train::Autocast autocast(at::kBFloat16, gpu);
  const at::Tensor target = at::randint(kClasses, {rows}, at::TensorOptions(gpu).dtype(at::kLong));
  const at::Tensor scores = at::randn({rows, kClasses}, gpu).to(at::kBFloat16).requires_grad_();
  const auto gradient = [&](const at::Tensor& loss) { return torch::autograd::grad({loss}, {scores})[0]; };
  const auto ours = [&] { return gradient(at::cross_entropy_loss(scores, target)); };
  const auto libtorchs = [&] { return gradient(at::compositeimplicitautograd::cross_entropy_loss(scores, target)); };
  const double differs = difference(ours(), libtorchs());
  bench.compare(
      "cross_entropy", 6.0 * static_cast<double>(rows * kClasses), differs, 1e-2, [&] { ours(); },
      [&] { libtorchs(); });
}

// Forward passes are libtorch's.
void measure_layer_norm(Bench& bench, c10::Device gpu, std::int64_t rows, std::int64_t columns) {
  const at::NoGradGuard no_grad;  // as in a backward pass
  const at::Tensor x = at::randn({rows, columns}, gpu), of_result = at::randn_like(x);
  const at::Tensor weight = at::randn({columns}, gpu), bias = at::randn({columns}, gpu);
  const auto results = at::native_layer_norm(x, {columns}, weight, bias, 1e-5);
  const auto ours = [&] {
    return at::native_layer_norm_backward(of_result, x, {columns}, std::get<1>(results), std::get<2>(results), weight,
                                          bias, {true, true, true});
  };
  const auto libtorchs = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;  // dtrain's is with autograd's
    return ours();
  };
  const auto own = ours(), theirs = libtorchs();
  const double differs =
      std::max({difference(std::get<0>(own), std::get<0>(theirs)), difference(std::get<1>(own), std::get<1>(theirs)),
                difference(std::get<2>(own), std::get<2>(theirs))});
  bench.compare(
      "norm " + std::to_string(columns), 12.0 * static_cast<double>(rows * columns), differs, 1e-5, [&] { ours(); },
      [&] { libtorchs(); });
}

// A block's output under autocast: its sum with the residual, layer norm of it in bfloat16 for the next product, and
// the gradients of both.
void measure_add_norm(Bench& bench, c10::Device gpu, std::int64_t rows, std::int64_t columns) {
  const at::Tensor input = at::randn({rows, columns}, gpu).to(at::kBFloat16).requires_grad_();
  const at::Tensor residual = at::randn({rows, columns}, gpu).requires_grad_();
  const at::Tensor weight = at::randn({columns}, gpu).requires_grad_(),
                   bias = at::randn({columns}, gpu).requires_grad_();
  const at::Tensor of_normalized = at::randn({rows, columns}, gpu).to(at::kBFloat16), of_sum = at::randn_like(residual);
  const auto ours = [&] {
    const train::Autocast autocast(at::kBFloat16, gpu);
    return add_layer_norm(input, residual, weight, bias);
  };
  const auto libtorchs = [&]() -> AddNormResult {
    const train::Autocast autocast(at::kBFloat16, gpu);
    const at::Tensor sum = residual + input;
    return {at::layer_norm(sum, {columns}, weight, bias).to(at::kBFloat16), sum};
  };
  const auto gradients = [&](const AddNormResult& result) {
    return torch::autograd::grad({result.normalized, result.sum}, {input, residual, weight, bias},
                                 {of_normalized, of_sum});
  };
  const AddNormResult own = ours(), theirs = libtorchs();
  double differs = std::max(difference(own.normalized, theirs.normalized), difference(own.sum, theirs.sum));
  const auto of_own = gradients(own), of_theirs = gradients(theirs);
  for (std::size_t i = 0; i < of_own.size(); ++i) differs = std::max(differs, difference(of_own[i], of_theirs[i]));
  const std::string size = std::to_string(columns);
  const double values = static_cast<double>(rows * columns);
  bench.compare(
      "add_norm " + size, 28.0 * values, differs, 1e-2, [&] { gradients(ours()); }, [&] { gradients(libtorchs()); });
}

// In chunks of 64 MiB and of 256 MiB, against libtorch's operators with all scores.
void measure_linear_cross_entropy(Bench& bench, c10::Device gpu, std::int64_t rows) {
  constexpr std::int64_t kClasses = 50'257, kFeatures = 768;
  const at::Tensor target = at::randint(kClasses, {rows}, at::TensorOptions(gpu).dtype(at::kLong));
  const at::Tensor hidden = at::randn({rows, kFeatures}, gpu).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = (at::randn({kClasses, kFeatures}, gpu) * 0.02).requires_grad_();
  const auto gradient_of = [&](const std::function<at::Tensor()>& loss_of) {
    at::Tensor loss;
    {
      const train::Autocast autocast(at::kBFloat16, gpu);
      loss = loss_of();
    }
    return torch::autograd::grad({loss}, {hidden, weight})[1];
  };
  const auto libtorchs = [&] {
    return gradient_of(
        [&] { return at::compositeimplicitautograd::cross_entropy_loss(at::linear(hidden, weight), target); });
  };
  for (const std::int64_t mib : {64, 256}) {
    const auto ours = [&] {
      return gradient_of([&] { return linear_cross_entropy(hidden, weight, target, {.chunk_bytes = mib << 20}); });
    };
    const double differs = difference(ours(), libtorchs());
    bench.compare_products(
        "linear_cross_entropy, " + std::to_string(mib) + " MiB", 6.0 * static_cast<double>(rows * kClasses * kFeatures),
        differs, 1e-2, [&] { ours(); }, [&] { libtorchs(); });
  }
}

// Forward and backward of causal attention with 12 heads of 64 features, by each of libtorch's kernels against its own
// choice.
void measure_attention(Bench& bench, c10::Device gpu, std::int64_t samples) {
  constexpr std::int64_t kHeads = 12, kTokens = 1024, kFeatures = 64;
  const auto random = [&] {
    return at::randn({samples, kHeads, kTokens, kFeatures}, at::TensorOptions(gpu).dtype(at::kBFloat16));
  };
  const std::vector<at::Tensor> inputs{random().requires_grad_(), random().requires_grad_(), random().requires_grad_()};
  const at::Tensor of_result = random();
  const auto gradient = [&] {
    const at::Tensor result =
        at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0, /*is_causal=*/true);
    return torch::autograd::grad({result}, inputs, {of_result})[0];
  };
  const at::Tensor chosen = gradient();
  const double chosens = seconds_of(gpu, gradient);
  // Two products forward and five backward, of half of all pairs of tokens; each takes two operations for a feature.
  const double operations = 7.0 * static_cast<double>(samples * kHeads * kTokens * kTokens * kFeatures);
  for (const auto& [name, attention] : config::kAttentions) {
    if (attention == config::Attention::kAuto || attention == config::Attention::kMath) continue;
    train::use_fast_paths(gpu, {.attention = attention});
    bench.compare_products(std::string("attention, ") + name, operations, difference(gradient(), chosen), 2e-2,
                           gradient, chosens);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::int64_t divisor = argc > 1 ? std::max(1L, std::atol(argv[1])) : 1;
    const c10::Device gpu = train::open_device(0);
    if (const std::string& why = train::why_no_device_kernels(); !why.empty()) {
      std::printf("there are no kernels: %s\n", why.c_str());
      return 1;
    }
    train::use_own_operators();
    at::manual_seed(1);
    const std::int64_t parameters = 124'000'000 / divisor;
    Bench bench(gpu);
    bench.measure_copies(parameters);
    measure_adamw(bench, gpu, parameters);
    measure_sgd(bench, gpu, parameters);
    measure_lamb(bench, gpu, parameters);
    measure_muon(bench, gpu, parameters);
    measure_norm(bench, gpu, parameters);
    const std::int64_t rows = std::max<std::int64_t>(1, 8 * 1024 / divisor);
    measure_cross_entropy(bench, gpu, rows);
    measure_linear_cross_entropy(bench, gpu, rows);
    for (const std::int64_t columns : {768, 2048}) measure_layer_norm(bench, gpu, rows, columns);
    for (const std::int64_t columns : {768, 2048}) measure_add_norm(bench, gpu, rows, columns);
    measure_attention(bench, gpu, std::max<std::int64_t>(1, 8 / divisor));
    return bench.all_near() ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("bench_gpu_kernels: %s\n", error.what());
    return 1;
  }
}
