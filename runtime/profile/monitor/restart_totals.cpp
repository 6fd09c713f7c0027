#include "monitor/restart_totals.h"

#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "dtrain/base/json.h"
#include "dtrain/profile/run_records.h"

namespace dtrain::profile {
namespace {

void add(RestartTotals& totals, const Json& event) {
  const std::string what = text_at(event, "event");
  if (what == "attempt_failed") ++totals.restarts;
  if (what != "recovered") return;
  ++totals.recoveries;
  totals.batches_again += value_at<std::int64_t>(event, "batches_again").value_or(0);
  totals.last_recovery_s = value_at<double>(event, "seconds").value_or(0);
  totals.recovery_s += totals.last_recovery_s;
  totals.lost_s += value_at<double>(event, "lost_s").value_or(0);
}

}  // namespace

RestartEvents::RestartEvents(std::filesystem::path run_dir) : file_(std::move(run_dir) / "events.jsonl") {}

const RestartTotals& RestartEvents::poll() {
  std::error_code code;
  const auto bytes = std::filesystem::is_regular_file(file_, code) ? std::filesystem::file_size(file_, code) : 0;
  if (code || static_cast<std::int64_t>(bytes) <= read_) return totals_;
  std::ifstream events(file_, std::ios::binary);
  events.seekg(read_);
  Damage damage;                                                          // `dtrain runs` names it
  for (std::string line; std::getline(events, line) && !events.eof();) {  // at the end of the file a line is not whole
    read_ += std::ssize(line) + 1;
    const bool wanted =
        line.find("\"attempt_failed\"") != std::string::npos || line.find("\"recovered\"") != std::string::npos;
    if (!wanted) continue;
    if (const auto event = parse_record(RecordFile::kEvents, line, "events.jsonl", damage)) add(totals_, *event);
  }
  return totals_;
}

}  // namespace dtrain::profile
