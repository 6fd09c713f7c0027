#include "folder/event_log.h"

#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {

EventLog::EventLog(const std::filesystem::path& path, const Clock& clock, int rank, std::string host)
    : clock_(clock), rank_(rank), host_(std::move(host)), file_(path) {}

void EventLog::write(const std::string& event, const Json& fields) {
  Json line = {{"time", format_utc(clock_.wall())}, {"event", event}};
  if (rank_ >= 0) line["rank"] = rank_;
  line["pid"] = ::getpid();
  line["host"] = host_;
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items()) line[key] = value;
  }
  const std::scoped_lock lock(mutex_);
  file_.append(to_line(line) + "\n");
}

Json run_ended(int exit_code, const std::string& cause) {
  const bool interrupted =
      exit_code == static_cast<int>(ExitCode::kInterrupted) || exit_code == static_cast<int>(ExitCode::kPreempted);
  const char* state = exit_code == 0 ? "done" : interrupted ? "interrupted" : "failed";
  Json fields = {{"state", state}, {"exit_code", exit_code}};
  if (!cause.empty()) fields["cause"] = cause;
  return fields;
}

}  // namespace dtrain::run
