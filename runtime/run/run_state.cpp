#include "dtrain/run/run_state.h"

#include <fstream>
#include <string>

#include "dtrain/base/json.h"
#include "process_id.h"

namespace dtrain::run {

bool is_over(const RunFolder& folder) {
  std::ifstream file(folder.events());
  bool any_left = false;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::string event = json.value("event", std::string());
    if (event == "run_ended") return true;
    if (event != "submitted" && event != "run_started" && event != "rank_started") continue;
    // The same number with another start is a later process.
    const std::uint64_t ticks = start_ticks(json.value("pid", 0));
    any_left |= ticks != 0 && ticks == json.value("start_ticks", ticks);
  }
  return !any_left;
}

}  // namespace dtrain::run
