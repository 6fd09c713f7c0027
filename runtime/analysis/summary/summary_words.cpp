#include "summary/summary_words.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"

namespace dtrain::analysis {

std::string batches_text(const RunSummary& summary) {
  std::string text = count_text(summary.steps, "batch");
  // Metrics count the optimizer steps of all attempts.
  const bool one_attempt = summary.history.attempts.size() <= 1;
  if (one_attempt && summary.optimizer_steps && *summary.optimizer_steps != summary.steps) {
    text += ", " + count_text(*summary.optimizer_steps, "optimizer step");
  }
  return text;
}

std::string attempt_name(const RunSummary& summary) {
  const auto& attempts = summary.history.attempts;
  return attempts.size() <= 1 ? std::string() : fmt::format("attempt {}", attempts.back().attempt);
}

std::string attempt_text(const RunSummary& summary) {
  const auto& attempts = summary.history.attempts;
  if (attempts.size() <= 1) return {};
  const std::string batches = batches_text(attempts.back());
  return fmt::format("{} of {}: {}", attempt_name(summary), attempts.size(),
                     batches == "none" ? "no batch" : "batches " + batches);
}

std::string useful_time_text(const RunSummary& summary) {
  if (summary.history.attempts.size() <= 1) return {};
  const auto useful = summary.history.useful_time();
  return useful ? text_of(*useful) : std::string();
}

std::string extent_text(const RunSummary& summary) {
  const std::string attempt = attempt_text(summary);
  return attempt.empty() ? batches_text(summary) : attempt;
}

namespace {

std::string saving_text(const RunSummary& summary) {
  const RunHistory& history = summary.history;
  const auto phase = std::find_if(summary.phases.begin(), summary.phases.end(),
                                  [](const PhaseSummary& phase) { return phase.name == "checkpoint"; });
  if (phase == summary.phases.end() || phase->seconds <= 0) {
    return fmt::format(
        "copying held training up for {} in all{}", seconds_text(history.copy_s()),
        history.checkpoints.size() == 1 ? "" : ", for " + seconds_text(history.longest_copy_s()) + " at most");
  }
  // A profile covers one attempt.
  RunHistory covered;
  for (const CheckpointAccount& checkpoint : history.checkpoints) {
    if (history.attempts.empty() || checkpoint.attempt == history.attempts.back().attempt)
      covered.checkpoints.push_back(checkpoint);
  }
  const std::string attempt = attempt_name(summary);
  std::string text = fmt::format("{}saving held training up for {} in all",
                                 attempt.empty() ? "" : "in " + attempt + " ", seconds_text(phase->seconds));
  // The phase's time is the mean of the ranks; a copy's time is that of the slowest rank.
  if (covered.copy_s() <= phase->seconds) text += ", " + seconds_text(covered.copy_s()) + " of it copying";
  return text;
}

constexpr double kAlmostAll = 0.995;  // share of a scope's time in one phase: above it, the other phases are not named

}  // namespace

std::string checkpoints_text(const RunSummary& summary) {
  const auto& checkpoints = summary.history.checkpoints;
  if (checkpoints.empty()) return "no checkpoint was saved";
  const CheckpointAccount& last = checkpoints.back();
  const auto kept = std::count_if(checkpoints.begin(), checkpoints.end(),
                                  [](const auto& checkpoint) { return checkpoint.fate == CheckpointFate::kKept; });
  const std::string which =
      fmt::format("of batch {} and {}", count_text(last.step), format_bytes(static_cast<double>(last.bytes)));
  if (checkpoints.size() == 1) return fmt::format("1 checkpoint was saved, {}; {}", which, saving_text(summary));
  return fmt::format("{} checkpoints were saved, {} {} kept, the last one {}; {}", count_text(std::ssize(checkpoints)),
                     count_text(kept), kept == 1 ? "is" : "are", which, saving_text(summary));
}

std::string batch_size_text(const RunSummary& summary) {
  if (!summary.global_batch_size) return {};
  const std::int64_t trained = summary.batch_samples.value_or(*summary.global_batch_size);
  std::string text = count_text(*summary.global_batch_size);
  if (trained != *summary.global_batch_size) text += fmt::format(", of which {} are trained on", count_text(trained));
  if (summary.aggregation_frequency > 1) {
    text += fmt::format(", effective batch {} ({} x {})", count_text(trained * summary.aggregation_frequency),
                        summary.aggregation_frequency, count_text(trained));
  }
  return text;
}

std::string compute_text(const RunSummary& summary) {
  if (!summary.compute) return {};
  const ComputeAccount& c = *summary.compute;
  if (c.flops_per_sample <= 0) return "no FLOPs: " + c.without_mfu;
  std::string text = fmt::format("{} a batch, {} in {}", amount_text(c.flops_per_step, "FLOP"),
                                 amount_text(c.achieved_gflops * 1e9, "FLOP/s"), c.dtype);
  if (c.mfu) {
    text += fmt::format(": MFU {} of {}", format_percent(*c.mfu), amount_text(*c.limit_gflops * 1e9, "FLOP/s"));
    if (c.limit_dtype != c.dtype) text += " in " + c.limit_dtype;
  } else {
    text += "; no MFU: " + c.without_mfu;
  }
  if (c.achieved_gb_s && c.limit_gb_s) {
    text += fmt::format("; operators without FLOPs move {} of {}", amount_text(*c.achieved_gb_s * 1e9, "B/s"),
                        amount_text(*c.limit_gb_s * 1e9, "B/s"));
  }
  return text;
}

std::string exposed_text(const RunSummary& summary) {
  std::string unknown;
  if (summary.graphs_s > 0) {
    unknown = fmt::format("in CUDA graphs ({} of the loop) the exposed communication is not known; outside of them: ",
                          format_percent(summary.graphs_share));
  }
  return unknown +
         fmt::format(
             "exposed communication {} ({} of the loop): the exchange {} ({}), waiting for the last rank {} ({})",
             seconds_text(summary.exposed_s), format_percent(summary.exposed_share), seconds_text(summary.exchange_s),
             format_percent(summary.exchange_share), seconds_text(summary.waiting_s),
             format_percent(summary.waiting_share));
}

std::string collectives_text(const RunSummary& summary) {
  double buckets_s = 0, others_s = 0;
  for (const CollectiveSummary& collective : summary.collectives)
    (collective.bucket < 0 ? others_s : buckets_s) += collective.exposed_s;
  if (summary.collectives.empty()) return {};
  return fmt::format(
      "the training waited {} for buckets and {} for other operations (barriers, small all-reduces); the wait for the "
      "last rank is in both, and what metrics and checkpoints wait for is counted with those phases",
      seconds_text(buckets_s), seconds_text(others_s));
}

std::string phases_text(const ScopeSummary& scope) {
  if (scope.phases.empty()) return "-";
  const auto named = [&](std::size_t i) {
    const auto& [phase, seconds] = scope.phases[i];
    return phase + " " + format_percent(seconds / scope.seconds);
  };
  if (scope.phases.size() == 1 || scope.phases.front().second >= kAlmostAll * scope.seconds) {
    return scope.phases.front().first;
  }
  return named(0) + ", " + named(1);
}

std::size_t depth_of(const ScopeSummary& scope) {
  return static_cast<std::size_t>(std::count(scope.path.begin(), scope.path.end(), '/'));
}

std::string name_in(const ScopeSummary& scope) {
  return scope.path.substr(scope.path.rfind('/') + 1);
}

void write_scopes(TextWriter& out, const RunSummary& summary) {
  if (summary.scopes.empty()) return;
  const bool alone = summary.ranks.size() == 1;
  out.heading(std::string("Scopes of the trial") + (summary.times_of_gpus ? " (times of the host)" : ""));
  out.line("  {:<24}{:>7}{:>12}{:>12}{:>12}{:>9}  {}", "", "share", "total", "p50", "p99", "calls", "within");
  for (const ScopeSummary& scope : summary.scopes) {
    const std::string name = std::string(2 * depth_of(scope), ' ') + name_in(scope);
    const std::string slowest =
        alone ? "" : fmt::format("; rank {}: {}", scope.slowest_rank, seconds_text(scope.slowest_s));
    out.line("  {:<24}{:>7}{:>12}{:>12}{:>12}{:>9}  {}{}", name, format_percent(scope.share),
             seconds_text(scope.seconds), seconds_text(scope.p50_s), seconds_text(scope.p99_s), count_text(scope.calls),
             phases_text(scope), slowest);
  }
}

}  // namespace dtrain::analysis
