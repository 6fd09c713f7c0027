#include "summary/summary_words.h"

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/units.h"
#include "text/numbers.h"

namespace dtrain::analysis {

std::string batches_text(const RunSummary& summary) {
  std::string text = count_text(summary.steps) + (summary.steps == 1 ? " batch" : " batches");
  if (summary.optimizer_steps && *summary.optimizer_steps != summary.steps) {
    text += ", " + count_text(*summary.optimizer_steps) +
            (*summary.optimizer_steps == 1 ? " optimizer step" : " optimizer steps");
  }
  return text;
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

std::string exposed_text(const RunSummary& summary) {
  return fmt::format(
      "exposed communication {} ({} of the loop): the exchange {} ({}), waiting for the last rank {} ({})",
      seconds_text(summary.exposed_s), format_percent(summary.exposed_share), seconds_text(summary.exchange_s),
      format_percent(summary.exchange_share), seconds_text(summary.waiting_s), format_percent(summary.waiting_share));
}

std::string collectives_text(const RunSummary& summary) {
  double buckets_s = 0, others_s = 0;
  for (const CollectiveSummary& one : summary.collectives) (one.bucket < 0 ? others_s : buckets_s) += one.exposed_s;
  if (summary.collectives.empty()) return {};
  return fmt::format(
      "the training waited {} for buckets and {} for other operations (barriers, small all-reduces); the wait for the "
      "last rank is in both, and what metrics and checkpoints wait for is counted with those phases",
      seconds_text(buckets_s), seconds_text(others_s));
}

}  // namespace dtrain::analysis
