// What a rank writes into the run's folder besides its records: its events, its output, and rank 0's metrics. Each part
// states which threads may use it.
#pragma once

#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/run/run_folder.h"
#include "folder/log_redirect.h"
#include "folder/run_lock.h"
#include "rank/metrics_log.h"
#include "rank/rank_events.h"

namespace dtrain::run {

struct RankFiles {
  RankFiles(const Clock& clock, const Logger& log) : events(clock, log) {}

  RunFolder folder;
  RunLock lock;                       // rank 0 without a launcher
  std::filesystem::path resume_from;  // without a launcher: the checkpoint that rank 0 has found; empty: none
  bool is_launchers_folder = true;    // false: this host has its own folder, which the launcher collects
  std::optional<LogRedirect> output;  // none if the launcher has redirected this process's output to the log file
  RankEvents events;
  std::optional<MetricsLog> metrics;  // rank 0
};

}  // namespace dtrain::run
