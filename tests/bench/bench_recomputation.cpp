// What gradient checkpointing costs and saves: a GPT's forward and backward pass with each block computed again in
// backward (dtrain::checkpoint()) and with everything kept, in turns, on one thread.
//
//   bench_recomputation [--json] [--quick] [--batch 8]
//
// Kept bytes: what the process's allocator has handed out more at the end of the forward pass than at its start.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include <ATen/Parallel.h>

#include <dtrain/dtrain.h>

#include "compute_models.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"

namespace {

using namespace dtrain;

constexpr bench::GptSizes kSizes{.tokens = 4096, .length = 128, .layers = 6, .heads = 4, .width = 256};

struct Times {
  std::vector<double> ms;
  double kept_mb = 0;
};

std::size_t handed_out() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

torch::Tensor scores_of(bench::Gpt& model, const torch::Tensor& tokens, bool again) {
  torch::Tensor x = model->tokens(tokens) + model->positions.narrow(0, 0, tokens.size(1));
  for (torch::nn::AnyModule& block : *model->blocks) {
    const auto forward = [&block](const torch::Tensor& input) { return block.forward<torch::Tensor>(input); };
    x = again ? dtrain::checkpoint(forward, x) : forward(x);
  }
  return torch::linear(model->norm(x), model->tokens->weight);
}

void run_once(bench::Gpt& model, const torch::Tensor& tokens, bool again, Times& times) {
  const auto began = std::chrono::steady_clock::now();
  const std::size_t before = handed_out();
  const auto inputs = tokens.narrow(1, 0, kSizes.length);
  const auto scores = scores_of(model, inputs, again);
  const auto loss = at::cross_entropy_loss(scores.flatten(0, 1), tokens.narrow(1, 1, kSizes.length).flatten());
  times.kept_mb = static_cast<double>(handed_out() - before) / 1e6;
  loss.backward();
  times.ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
  model->zero_grad();
}

[[noreturn]] void show_usage() {
  std::cerr << "usage: bench_recomputation [--json] [--quick] [--batch 8]\n";
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, quick = false;
  int batch = 8;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--batch") == 0 && i + 1 < argc && (batch = std::atoi(argv[++i])) > 0) {
    } else {
      show_usage();
    }
  }
  at::set_num_threads(1);
  torch::manual_seed(1);
  bench::Gpt model(kSizes);
  const auto tokens = torch::randint(kSizes.tokens, {batch, kSizes.length + 1}, torch::kLong);
  Times kept, again, warm_up;
  for (const bool recompute : {false, true}) run_once(model, tokens, recompute, warm_up);
  for (int turn = 0; turn < (quick ? 5 : 15); ++turn) {
    run_once(model, tokens, false, kept);
    run_once(model, tokens, true, again);
  }
  const Json result = {{"model", "gpt"},
                       {"batch", batch},
                       {"kept_ms", median_low(kept.ms)},
                       {"recomputed_ms", median_low(again.ms)},
                       {"time_ratio", median_low(again.ms) / median_low(kept.ms)},
                       {"kept_mb", kept.kept_mb},
                       {"recomputed_kept_mb", again.kept_mb},
                       {"memory_ratio", kept.kept_mb / again.kept_mb}};
  if (json) {
    std::cout << result.dump() << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value.dump() << "\n";
  }
}
