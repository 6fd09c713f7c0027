#include "rank/metrics_log.h"

#include "dtrain/base/error.h"

namespace dtrain::run {

void MetricsLog::write(const Json& line) {
  Json full = {{"time", format_utc(clock_.wall())}};
  for (const auto& [key, value] : line.items()) full[key] = value;
  try {
    file_.append(to_line(full) + "\n");
  } catch (const SystemError& error) {
    if (lost_++ > 0) return;
    log_->warn("metrics are missing from the run's folder: {}; training goes on, and what is lost is counted",
               error.what());
  }
}

void MetricsLog::report_losses(RankEvents& events) const {
  if (lost_ > 0) events.try_write("metrics_lost", {{"count", lost_}});
}

}  // namespace dtrain::run
