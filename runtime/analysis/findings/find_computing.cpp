// Finds the computing that is slower than the machine allows, from the counted operators and the machine's limits.
#include <algorithm>
#include <array>

#include <spdlog/fmt/fmt.h>

#include "findings/make_findings.h"
#include "measure/roofline.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kSlow = 0.5;             // of the limit
constexpr double kFar = 3;                // times the ideal
constexpr std::int64_t kSmallBatch = 64;  // rows of a product

// The three sizes of a product of matrices: rows of the first, columns of the first, columns of the second.
std::optional<std::array<std::int64_t, 3>> product_sizes(const OperatorLimit& one) {
  const bool added = one.name == "aten::addmm" || one.name == "aten::baddbmm";
  if (!added && one.name != "aten::mm" && one.name != "aten::bmm") return std::nullopt;
  const std::size_t first = added ? 1 : 0;
  if (one.shapes.size() < first + 2) return std::nullopt;
  const auto &a = one.shapes[first], &b = one.shapes[first + 1];
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  return std::array{a[a.size() - 2], a.back(), b.back()};
}

std::string sizes_text(const std::array<std::int64_t, 3>& sizes) {
  return fmt::format("{}x{} by {}x{}", sizes[0], sizes[1], sizes[1], sizes[2]);
}

double achieved_gflops(const OperatorLimit& one) {
  return one.seconds > 0 ? static_cast<double>(one.flops) / one.seconds / kGiga : 0;
}

class Computing {
 public:
  Computing(const Evidence& evidence, const Analysis& analysis)
      : roofline_(evidence.roofline), what_if_(analysis.what_if) {
    double samples = 0;
    for (const RankProfile& rank : evidence.run.ranks) samples += static_cast<double>(rank.sample_count());
    if (roofline_.samples > 0 && !evidence.run.ranks.empty()) {
      batches_ = samples / static_cast<double>(evidence.run.ranks.size()) / static_cast<double>(roofline_.samples);
    }
  }

  std::vector<Finding> find() {
    if (!roofline_.limits || roofline_.operators.empty()) return {};
    add_predicted("bf16", "float32", "products of matrices and convolutions are computed in float32",
                  "set optimizations.mixed_precision: bf16");
    add_predicted("channels_last", "contiguous", "convolutions read their images plane by plane (contiguous)",
                  "set optimizations.memory_format: channels_last, or auto, which tries both");
    add_small_operators();
    add_small_batch();
    add_odd_sizes();
    add_slow_operators();
    return std::move(found_);
  }

 private:
  // Converts seconds of the counted batch to seconds of the whole loop, mean over ranks.
  double of_loop(double seconds) const { return seconds * batches_; }

  double beyond_limit_s(const OperatorLimit& one) const {
    const auto limit = limit_gflops_of(roofline_, one, one.dtype);
    return limit ? std::max(0.0, one.seconds - static_cast<double>(one.flops) / (*limit * kGiga)) : 0;
  }

  bool is_slow(const OperatorLimit& one) const {
    const auto limit = limit_gflops_of(roofline_, one, one.dtype);
    return limit && achieved_gflops(one) < kSlow * *limit && !is_bound_by_calls(one);
  }

  std::string rate_text(const OperatorLimit& one) const {
    const auto limit = limit_gflops_of(roofline_, one, one.dtype);
    return fmt::format("{} of {}", amount_text(achieved_gflops(one) * kGiga, "FLOP/s"),
                       amount_text(limit.value_or(0) * kGiga, "FLOP/s"));
  }

  void add_predicted(const char* prediction, const char* id, const std::string& what, const std::string& advice) {
    const auto found = std::find_if(what_if_.changes.begin(), what_if_.changes.end(),
                                    [&](const Prediction& one) { return one.name == prediction; });
    if (found == what_if_.changes.end()) return;
    found_.push_back(make_finding(
        id, found->saved_s, fmt::format("{}, which takes {}", what, seconds_text(found->saved_s)), found->assumption,
        fmt::format("{}: a batch is predicted to take {} instead of {}", advice, seconds_text(found->step_s),
                    seconds_text(what_if_.step_s))));
  }

  // Adds the finding of tensors so small that calling their operators takes longer than the work.
  void add_small_operators() {
    double lost_s = 0, work_s = 0;
    std::int64_t calls = 0;
    for (const OperatorLimit& one : roofline_.operators) {
      if (!is_bound_by_calls(one)) continue;
      lost_s += one.seconds - *one.ideal_s;
      work_s += *one.ideal_s;
      calls += one.calls;
    }
    if (calls == 0) return;
    found_.push_back(make_finding(
        "small_operators", of_loop(lost_s),
        fmt::format("calling operators on small tensors takes {}", seconds_text(of_loop(lost_s))),
        fmt::format("{} calls a batch take {}, and their work needs {}: the rest is the same for tensors of any size",
                    count_text(calls), seconds_text(lost_s + work_s), seconds_text(work_s)),
        "raise hyperparameters.global_batch_size: as many calls do more work; in Python, torch.compile() makes fewer "
        "calls"));
  }

  // Adds the finding that the largest product has so few rows that the arithmetic units wait for the weights.
  void add_small_batch() {
    const OperatorLimit* largest = nullptr;
    double lost_s = 0;
    for (const OperatorLimit& one : roofline_.operators) {
      const auto sizes = product_sizes(one);
      if (!sizes) continue;
      if (!largest || one.flops > largest->flops) largest = &one;
      if (std::min((*sizes)[0], (*sizes)[1]) < kSmallBatch && is_slow(one)) lost_s += beyond_limit_s(one);
    }
    if (!largest || !is_slow(*largest)) return;
    const auto sizes = *product_sizes(*largest);
    // The batch is the rows of the forward product, and the summed dimension of the product for the weights' gradients.
    if (std::min(sizes[0], sizes[1]) >= kSmallBatch || roofline_.samples >= kSmallBatch) return;
    small_batch_ = true;
    found_.push_back(make_finding(
        "small_batch", of_loop(lost_s),
        fmt::format("{} samples a rank are too few for products of matrices, which takes {}", roofline_.samples,
                    seconds_text(of_loop(lost_s))),
        fmt::format("the largest product ({}, {}) runs at {}", largest->name, sizes_text(sizes), rate_text(*largest)),
        "raise hyperparameters.global_batch_size, or use fewer ranks (resources.slots_per_trial)"));
  }

  // Adds the finding of odd sizes of layers. Sizes of batches do not count, because they differ from batch to batch.
  void add_odd_sizes() {
    const OperatorLimit* worst = nullptr;
    double lost_s = 0;
    std::int64_t multiple = 8, count = 0;
    for (const OperatorLimit& one : roofline_.operators) {
      const auto sizes = product_sizes(one);
      const std::int64_t liked = one.dtype == "float32" ? 8 : 16;
      if (!sizes || !is_slow(one) || small_batch_) continue;
      const bool odd = std::any_of(sizes->begin(), sizes->end(), [&](std::int64_t size) {
        return size > liked && size % liked != 0 && size != roofline_.samples;
      });
      if (!odd) continue;
      ++count;
      lost_s += beyond_limit_s(one);
      if (worst && beyond_limit_s(one) <= beyond_limit_s(*worst)) continue;
      worst = &one;
      multiple = liked;
    }
    if (!worst) return;
    found_.push_back(make_finding(
        "odd_sizes", of_loop(lost_s),
        fmt::format("{} of layers whose sizes are no multiples of {} take {} longer than the machine needs",
                    count == 1 ? "a product" : count_text(count) + " products", multiple,
                    seconds_text(of_loop(lost_s))),
        fmt::format("{} of {} runs at {}", worst->name, sizes_text(*product_sizes(*worst)), rate_text(*worst)),
        fmt::format("round the sizes of layers and vocabularies up to multiples of {}", multiple)));
  }

  // Adds the finding of operators that only move data and take far longer than the memory needs for it.
  void add_slow_operators() {
    double lost_s = 0;
    std::string names;
    const OperatorLimit* worst = nullptr;
    for (const OperatorLimit& one : roofline_.operators) {
      if (one.flops > 0 || !one.ideal_s || *one.ideal_s <= 0 || one.seconds < kFar * *one.ideal_s) continue;
      if (is_bound_by_calls(one)) continue;
      lost_s += one.seconds - *one.ideal_s;
      if (!worst) worst = &one;  // the operators are sorted, the slowest first
      if (names.size() < 100) names += (names.empty() ? "" : ", ") + one.name;
    }
    if (!worst) return;
    found_.push_back(make_finding(
        "slow_operators", of_loop(lost_s),
        fmt::format("operators that only move data take {} longer than memory needs", seconds_text(of_loop(lost_s))),
        fmt::format("{}; {} takes {} a batch for {}, which memory moves in {}", names, worst->name,
                    seconds_text(worst->seconds), amount_text(static_cast<double>(worst->bytes), "B"),
                    seconds_text(*worst->ideal_s)),
        fmt::format("call {} on less data, or put another operator in its place (docs/performance.md has examples)",
                    worst->name)));
  }

  const Roofline& roofline_;
  const WhatIf& what_if_;
  double batches_ = 0;  // counted batches in all samples of a rank
  bool small_batch_ = false;
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> find_computing(const Evidence& evidence, const Analysis& analysis) {
  return Computing(evidence, analysis).find();
}

}  // namespace dtrain::analysis
