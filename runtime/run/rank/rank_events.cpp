#include "rank/rank_events.h"

namespace dtrain::run {

void RankEvents::open(const std::filesystem::path& file, int rank, const std::string& host) {
  const std::scoped_lock lock(mutex_);
  if (!file_) file_ = std::make_unique<EventLog>(file, clock_, rank, host);
}

EventLog* RankEvents::file() {
  const std::scoped_lock lock(mutex_);
  return file_.get();
}

void RankEvents::write(const std::string& event, const Json& fields) {
  file()->write(event, fields);
}

void RankEvents::try_write(const std::string& event, const Json& fields) {
  EventLog* const open_file = file();
  if (!open_file) return;
  try {
    open_file->write(event, fields);
  } catch (const std::exception& error) {
    log_->error("cannot write the event '{}': {}", event, error.what());
  }
}

}  // namespace dtrain::run
