// events.jsonl: one JSON object per line, appended whole. Thread safe; several processes append to the same file.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain::run {

class EventLog {
 public:
  // `rank` -1: the launcher.
  EventLog(const std::filesystem::path& path, const Clock& clock, int rank, std::string host);
  // {"time", "event", "rank", "pid", "host", …fields}. SystemError if the disk is full.
  void write(const std::string& event, const Json& fields = {});

 private:
  const Clock& clock_;
  int rank_;
  std::string host_;
  std::mutex mutex_;
  LineAppender file_;
};

// Returns the fields of the last event of a run, "run_ended". `cause` is empty unless the run failed.
Json run_ended(ExitCode exit_code, const std::string& cause);

}  // namespace dtrain::run
