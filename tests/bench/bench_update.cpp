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
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"
#include "parallel/parallel.h"

namespace {

using namespace dtrain;

constexpr std::int64_t kParameters = 25'000'000;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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
    return bytes * static_cast<double>(kParameters) / median_of(times[name]) / 1e6;
  };
  const double stream_gb_s = gb_s("stream", plain_bytes);
  // A shadow is 2 bytes more, a bfloat16 gradient 2 bytes less.
  Json result = {{"kernel", update.kernel(at::kCPU, at::kFloat).whose},
                 {"check_ms", median_of(making)},
                 {"stream_gb_s", stream_gb_s}};
  for (const auto& [form, bytes] : {std::pair<std::string, double>{"float32", 0}, {"shadow", 2}, {"narrow", 0}}) {
    const double mine = median_of(times[form]), peer = median_of(times["libtorch " + form]);
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
  bool json = false;
  int rounds = 31, threads = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--quick") {
      rounds = 9;
    } else if (word == "--threads" && i + 1 < argc) {
      threads = std::max(1, std::atoi(argv[++i]));
    } else {
      std::cerr << "usage: bench_update [--json] [--quick] [--threads N]\n";
      return 2;
    }
  }
  at::set_num_threads(threads);
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
      rounds);
  const Json sgd_result = compare(
      sgd,
      [&](const Arrays& arrays, const at::Tensor& gradients) {
        at::_fused_sgd_(arrays.values, gradients, arrays.states, 0, sgd.momentum, 1e-4, 0, false, false, false);
      },
      rounds);
  const Json result = {{"parameters", kParameters}, {"threads", threads}, {"adamw", adamw_result}, {"sgd", sgd_result}};
  if (json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, of] : result.items()) std::cout << name << " " << of << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_update: " << dtrain::describe(error) << "\n";
  return 1;
}
