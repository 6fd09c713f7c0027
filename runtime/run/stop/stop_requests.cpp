#include "stop/stop_requests.h"

#include <csignal>

namespace dtrain::run {

bool StopRequests::launcher_ends(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  if (launcher_ended_) return false;
  launcher_ = name;
  launcher_ended_ = true;
  return true;
}

bool StopRequests::requested() const {
  return launcher_ended_ || launcher_signal_ != 0 || StopSignals::received() != 0;
}

std::string StopRequests::reason() const {
  if (launcher_ended_) {
    const std::scoped_lock lock(mutex_);
    return launcher_ + " is gone";
  }
  int signal = StopSignals::received();
  if (signal == 0) signal = launcher_signal_;
  if (signal != 0) return signal == SIGINT ? "SIGINT" : "SIGTERM";
  return {};
}

}  // namespace dtrain::run
