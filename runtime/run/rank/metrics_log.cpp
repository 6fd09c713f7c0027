#include "rank/metrics_log.h"

#include <unistd.h>

#include <cerrno>

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

std::int64_t MetricsLog::bytes() const {
  std::error_code code;
  const auto size = std::filesystem::file_size(file_.path(), code);
  return code ? 0 : static_cast<std::int64_t>(size);
}

void MetricsLog::cut(std::int64_t wanted) {
  const std::int64_t there = bytes();
  if (there < wanted) {
    log_->warn("{} has {} bytes, but had {} when the checkpoint was taken: metrics of earlier batches are missing",
               file_.path().string(), there, wanted);
    return;
  }
  if (::truncate(file_.path().c_str(), wanted) != 0) throw SystemError("cut " + file_.path().string(), errno);
}

void MetricsLog::report_losses(RankEvents& events) const {
  if (lost_ > 0) events.try_write("metrics_lost", {{"count", lost_}});
}

}  // namespace dtrain::run
