// Rank 0's metrics.jsonl. A full disk does not end the training: lost lines are counted. The training thread makes all
// calls.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "rank/rank_events.h"

namespace dtrain::run {

class MetricsLog {
 public:
  // SystemError if the file cannot be opened.
  MetricsLog(const std::filesystem::path& path, const Clock& clock, Logger log)
      : file_(path), clock_(clock), log_(std::move(log)) {}

  // Appends the line, with the time as its first key. Warns when the first line is lost.
  void write(const Json& line);
  std::int64_t bytes() const;
  // See RankSession::cut_metrics().
  void cut(std::int64_t bytes);
  // Writes the number of lost lines as an event.
  void report_losses(RankEvents& events) const;

 private:
  LineAppender file_;
  const Clock& clock_;
  const Logger log_;
  std::int64_t lost_ = 0;
};

}  // namespace dtrain::run
