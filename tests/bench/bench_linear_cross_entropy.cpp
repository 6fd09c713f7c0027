// Forward and backward of a language model's loss from its last hidden states: dtrain::linear_cross_entropy(), and
// PyTorch's linear and cross_entropy, in turns.
//
//   bench_linear_cross_entropy [--json] [--quick] [--threads 2]
//
// Peak: the most that tensors take at once, beside the inputs, as libtorch's allocator reports it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <dtrain/dtrain.h>

#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"

namespace {

using namespace dtrain;

struct Sizes {
  std::int64_t rows = 2048, features = 512, classes = 50257;
};

class Peak final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  double mb() const { return static_cast<double>(peak_) / 1e6; }

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

struct Inputs {
  torch::Tensor input, weight, target;
};

struct Times {
  std::vector<double> ms;
  double peak_mb = 0, loss = 0;
};

class Autocast {
 public:
  explicit Autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

torch::Tensor loss_of(const Inputs& inputs, bool ours) {
  if (ours) return linear_cross_entropy(inputs.input, inputs.weight, inputs.target);
  return torch::nn::functional::cross_entropy(torch::linear(inputs.input, inputs.weight), inputs.target);
}

void run_once(const Inputs& inputs, bool ours, bool narrow, Times& times) {
  const auto peak = std::make_shared<Peak>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  const auto began = std::chrono::steady_clock::now();
  {
    torch::Tensor loss;
    {
      const Autocast autocast(narrow);
      loss = loss_of(inputs, ours);
    }
    loss.backward();
    times.loss = loss.item<double>();
  }
  times.ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
  times.peak_mb = peak->mb();
  inputs.input.mutable_grad().reset();
  inputs.weight.mutable_grad().reset();
}

Json compare(const Inputs& inputs, bool narrow, int turns) {
  Times ours, libtorchs, warm_up;
  for (const bool is_ours : {false, true}) run_once(inputs, is_ours, narrow, warm_up);
  for (int turn = 0; turn < turns; ++turn) {
    run_once(inputs, false, narrow, libtorchs);
    run_once(inputs, true, narrow, ours);
  }
  return {{"ours_ms", median_low(ours.ms)},
          {"libtorch_ms", median_low(libtorchs.ms)},
          {"ratio", median_low(libtorchs.ms) / median_low(ours.ms)},
          {"ours_peak_mb", ours.peak_mb},
          {"libtorch_peak_mb", libtorchs.peak_mb},
          {"peak_ratio", libtorchs.peak_mb / ours.peak_mb},
          {"difference", std::fabs(ours.loss - libtorchs.loss)}};
}

[[noreturn]] void show_usage() {
  std::cerr << "usage: bench_linear_cross_entropy [--json] [--quick] [--threads 2]\n";
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, quick = false;
  int threads = 2;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc && (threads = std::atoi(argv[++i])) > 0) {
    } else {
      show_usage();
    }
  }
  at::set_num_threads(threads);
  torch::manual_seed(1);
  const Sizes sizes;
  const Inputs inputs{torch::randn({sizes.rows, sizes.features}).requires_grad_(),
                      (torch::randn({sizes.classes, sizes.features}) * 0.02).requires_grad_(),
                      torch::randint(0, sizes.classes, {sizes.rows}, torch::kLong)};
  const int turns = quick ? 3 : 7;
  const Json result = {{"rows", sizes.rows},
                       {"features", sizes.features},
                       {"classes", sizes.classes},
                       {"threads", threads},
                       {"scores_mb", static_cast<double>(sizes.rows * sizes.classes * 4) / 1e6},
                       {"float32", compare(inputs, false, turns)},
                       {"bfloat16", compare(inputs, true, turns)}};
  if (json) {
    std::cout << result.dump() << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value.dump() << "\n";
  }
}
