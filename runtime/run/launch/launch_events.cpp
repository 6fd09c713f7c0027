#include "launch/launch_events.h"

#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::run {

void LaunchEvents::write(const std::string& event, const Json& fields) {
  try {
    file_.write(event, fields);
  } catch (const SystemError& error) {
    if (std::exchange(warned_, true)) return;
    screen_.line("dtrain: warning: events are missing from the run's folder: " + describe(error) + "; the run goes on");
  }
}

}  // namespace dtrain::run
