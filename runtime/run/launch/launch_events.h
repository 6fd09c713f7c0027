// The launcher's lines of events.jsonl while ranks run. A full disk does not end the launch: the first event that
// cannot be written becomes a warning on the screen. One thread.
#pragma once

#include <string>

#include "dtrain/base/json.h"
#include "folder/event_log.h"
#include "folder/screen.h"

namespace dtrain::run {

class LaunchEvents {
 public:
  LaunchEvents(EventLog& file, Screen& screen) : file_(file), screen_(screen) {}
  void write(const std::string& event, const Json& fields = {});

 private:
  EventLog& file_;
  Screen& screen_;
  bool warned_ = false;
};

}  // namespace dtrain::run
