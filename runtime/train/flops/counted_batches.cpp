#include "flops/counted_batches.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <ATen/Parallel.h>

#include "dtrain/base/file.h"
#include "dtrain/host/identity.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kCounted[] = {2, 3, 5, 9, 17, 33};  // batches, from 1

}  // namespace

CountedBatches::CountedBatches(run::RankSession& session, bool on_gpu) : session_(session), counter_(!on_gpu) {
  counts_.rank = session.world().rank;
  counts_.host = host::host_identity().name;
  counts_.device = on_gpu ? "cuda" : "cpu";
  counts_.threads = at::get_num_threads();
}

std::optional<OperatorCounter::Scope> CountedBatches::begin() {
  ++trained_;
  counting_ = std::find(std::begin(kCounted), std::end(kCounted), trained_) != std::end(kCounted);
  if (!counting_) return std::nullopt;
  return std::optional<OperatorCounter::Scope>(std::in_place, counter_);
}

void CountedBatches::cancel() {
  --trained_;
  if (std::exchange(counting_, false)) static_cast<void>(counter_.take());
}

void CountedBatches::end(std::int64_t batch, std::int64_t samples) {
  if (!counting_) return;
  std::vector<profile::OperatorCount> operators = counter_.take();
  if (samples <= 0 || operators.empty()) return;
  std::int64_t flops = 0;
  double seconds = 0;
  std::map<std::string, std::int64_t> by_type;
  for (const profile::OperatorCount& one : operators) {
    flops += one.flops;
    seconds += one.seconds.value_or(0);
    if (one.flops > 0) by_type[one.dtype] += one.flops;
  }
  const auto all_samples = static_cast<double>(samples);
  ++counts_.counted;
  if (const double each = static_cast<double>(flops) / all_samples; each > counts_.flops_per_sample) {
    counts_.flops_per_sample = each;
    counts_.dtype = std::max_element(by_type.begin(), by_type.end(), [](const auto& a, const auto& b) {
                      return a.second < b.second;
                    })->first;
  }
  if (counts_.counted > 1 && seconds / all_samples >= seconds_per_sample_) return;
  seconds_per_sample_ = seconds / all_samples;
  counts_.batch = batch;
  counts_.samples = samples;
  counts_.operators = std::move(operators);
}

void CountedBatches::after_step() {
  if (!counting_) return;
  if (counts_.counted > 0 && !std::exchange(in_plan_, true)) {
    try {
      session_.update_plan(
          "flops", {{"per_sample", counts_.flops_per_sample}, {"dtype", counts_.dtype}, {"device", counts_.device}});
    } catch (const std::exception& error) {
      session_.log()->warn("plan.json does not get the FLOPs of a sample: {}", error.what());
    }
  }
  if (trained_ == *std::rbegin(kCounted)) write_file();
  counting_ = false;
}

void CountedBatches::finish() {
  if (!written_) write_file();
}

void CountedBatches::write_file() {
  written_ = true;
  if (counts_.counted == 0) return;
  const auto path = session_.run_dir() / "profile" / profile::operators_file_name(counts_.rank);
  try {
    write_file_atomic(path, to_line(profile::to_json(counts_)) + "\n");
  } catch (const std::exception& error) {
    session_.log()->warn("the table of operators is not written: {}", error.what());
  }
}

}  // namespace dtrain::train
