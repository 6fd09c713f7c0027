// This rank's lines of events.jsonl. Thread safe: the threads of the launcher's link and of the control plane write
// events as well.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "folder/event_log.h"

namespace dtrain::run {

class RankEvents {
 public:
  RankEvents(const Clock& clock, Logger log) : clock_(clock), log_(std::move(log)) {}

  // Opens the file at the first call. SystemError if it cannot.
  void open(const std::filesystem::path& file, int rank, const std::string& host);
  // SystemError if the disk is full. The file must be open.
  void write(const std::string& event, const Json& fields = {});
  // Logs an error instead of throwing it. Does nothing before open().
  void try_write(const std::string& event, const Json& fields = {});

 private:
  EventLog* file();

  const Clock& clock_;
  const Logger log_;
  std::mutex mutex_;
  std::unique_ptr<EventLog> file_;
};

}  // namespace dtrain::run
