// What the keepers of a run's hosts know of it together. A keeper that comes later, in the place of a lost one, learns
// it from the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::launcher {

struct RunKept {
  int started = 0;              // the number of attempts so far
  int restarts = 0;             // since the last progress
  std::int64_t saved = 0;       // the batch of the last checkpoint before the last attempt
  std::string run_dir;          // empty: not known yet
  std::string cause;            // of the last failure
  std::vector<int> hosts = {};  // that trained in the last attempt
  bool paused = false;          // the last attempt has not failed: it has ended for other hosts to take part
};

inline Json to_json(const RunKept& run) {
  return {{"started", run.started}, {"restarts", run.restarts}, {"saved", run.saved},  {"run_dir", run.run_dir},
          {"cause", run.cause},     {"hosts", run.hosts},       {"paused", run.paused}};
}

inline RunKept run_kept_of(const Json& json) {
  return {.started = json.at("started").get<int>(),
          .restarts = json.at("restarts").get<int>(),
          .saved = json.at("saved").get<std::int64_t>(),
          .run_dir = json.at("run_dir").get<std::string>(),
          .cause = json.at("cause").get<std::string>(),
          .hosts = json.at("hosts").get<std::vector<int>>(),
          .paused = json.at("paused").get<bool>()};
}

}  // namespace dtrain::launcher
