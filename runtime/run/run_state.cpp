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
    if (event == "run_started" || event == "rank_started") any_left |= start_ticks(json.value("pid", 0)) != 0;
  }
  return !any_left;
}

}  // namespace dtrain::run
