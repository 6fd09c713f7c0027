// An update of 25M parameters: dtrain's kernels against libtorch's fused ones, in turns, and against a plain loop over
// as many arrays.
//
//   bench_update [--json] [--quick] [--threads 1]
//
// A form of update is what it reads and writes: float32 alone; a copy of the new values in bfloat16 on top ("shadow");
// that, and gradients in bfloat16 ("narrow"). libtorch converts in passes of their own. Gigabytes per second count each
// array once for reading and once for writing, as the update needs them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "dtrain/config/optimizers.h"
#include "kernel_options.h"
#include "model/optimizer_update.h"
#include "numerics/parallel.h"

namespace {

using namespace dtrain;

constexpr std::int64_t kParameters = 25'000'000;

double milliseconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

struct Arrays {
  explicit Arrays(std::size_t count) {
    values = torch::randn({kParameters});
    gradients = torch::randn({kParameters}) * 0.01;
    narrow_gradients = gradients.to(at::kBFloat16);
    shadow = values.to(at::kBFloat16);
    for (std::size_t s = 0; s < count; ++s) states.push_back(torch::rand({kParameters}) * 1e-4);
  }
  at::Tensor values, gradients, narrow_gradients, shadow;
  std::vector<at::Tensor> states;
};

// Adds the gradients to two arrays, and their squares to a third: the average of squares stays positive.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
void stream_loop(std::int64_t count, const float* __restrict from, float* __restrict a, float* __restrict b,
                 float* __restrict c) {
  if (c) {
    for (std::int64_t i = 0; i < count; ++i) {
      a[i] += from[i];
      b[i] += from[i];
      c[i] += from[i] * from[i];
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      a[i] += from[i];
      b[i] += from[i];
    }
  }
}

void stream(const Arrays& arrays) {
  train::parallel_for(kParameters, 64 * 1024, [&](std::int64_t begin, std::int64_t end) {
    const auto at = [&](const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>() + begin; };
    stream_loop(end - begin, at(arrays.gradients), at(arrays.values), at(arrays.states[0]),
                arrays.states.size() > 1 ? at(arrays.states[1]) : nullptr);
  });
}

using LibtorchUpdate = std::function<void(const Arrays&, const at::Tensor& gradients)>;

template <class Settings>
Json compare(const Settings& settings, const LibtorchUpdate& libtorch, int rounds) {
  std::vector<double> making;  // what comparing the kernels at the start takes
  for (int i = 0; i < rounds; ++i) making.push_back(milliseconds_of([&] { settings.make_update(); }));
  const auto made = settings.make_update();
  const train::OptimizerUpdate& update = *made;
  const Arrays arrays(update.state_names().size());
  const auto ours = [&](const at::Tensor& gradients, const at::Tensor& shadow) {
    update.update(arrays.values, gradients, arrays.states, {1e-4, 5, {}, shadow});
  };
  const std::map<std::string, std::function<void()>> jobs{
      {"stream", [&] { stream(arrays); }},
      {"float32", [&] { ours(arrays.gradients, {}); }},
      {"shadow", [&] { ours(arrays.gradients, arrays.shadow); }},
      {"narrow", [&] { ours(arrays.narrow_gradients, arrays.shadow); }},
      {"libtorch float32", [&] { libtorch(arrays, arrays.gradients); }},
      {"libtorch shadow",
       [&] {
         libtorch(arrays, arrays.gradients);
         arrays.shadow.copy_(arrays.values);
       }},
      {"libtorch narrow",
       [&] {
         arrays.gradients.copy_(arrays.narrow_gradients);
         libtorch(arrays, arrays.gradients);
         arrays.shadow.copy_(arrays.values);
       }},
  };
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round <= rounds; ++round) {
    for (const auto& [name, job] : jobs) {
      const double time = milliseconds_of(job);
      if (round > 0) times[name].push_back(time);
    }
  }
  // Each element is read, and written unless it is a gradient.
  const double plain_bytes = 4.0 + 8.0 * static_cast<double>(1 + arrays.states.size());
  const auto gb_s = [&](const std::string& name, double bytes) {
    return bytes * static_cast<double>(kParameters) / median_low(times[name]) / 1e6;
  };
  const double stream_gb_s = gb_s("stream", plain_bytes);
  // A shadow is 2 bytes more, a bfloat16 gradient 2 bytes less.
  Json result = {{"kernel", update.kernel(at::kCPU, at::kFloat).whose},
                 {"check_ms", median_low(making)},
                 {"stream_gb_s", stream_gb_s}};
  for (const auto& [form, bytes] : {std::pair<std::string, double>{"float32", 0}, {"shadow", 2}, {"narrow", 0}}) {
    const double mine = median_low(times[form]), peer = median_low(times["libtorch " + form]);
    const double speed = gb_s(form, plain_bytes + bytes);
    result[form] = {{"ours_ms", mine},
                    {"libtorch_ms", peer},
                    {"ratio", peer / mine},
                    {"gb_s", speed},
                    {"of_stream", speed / stream_gb_s}};
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::KernelOptions options = bench::kernel_options(argc, argv, "bench_update");
  at::set_num_threads(options.threads);
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  const AdamW adamw;
  const Sgd sgd{.momentum = 0.9};
  const at::Tensor number = torch::tensor(6.0f);
  const Json adamw_result = compare(
      adamw,
      [&](const Arrays& arrays, const at::Tensor& gradients) {
        at::_fused_adamw_(arrays.values, gradients, arrays.states[0], arrays.states[1], {}, number, 1e-4, adamw.beta1,
                          adamw.beta2, adamw.weight_decay, adamw.eps, false, false);
      },
      options.rounds);
  const Json sgd_result = compare(
      sgd,
      [&](const Arrays& arrays, const at::Tensor& gradients) {
        at::_fused_sgd_(arrays.values, gradients, arrays.states, 0, sgd.momentum, 1e-4, 0, false, false, false);
      },
      options.rounds);
  const Json result = {
      {"parameters", kParameters}, {"threads", options.threads}, {"adamw", adamw_result}, {"sgd", sgd_result}};
  bench::print_result(result, options.json);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_update: " << dtrain::describe(error) << "\n";
  return 1;
}
