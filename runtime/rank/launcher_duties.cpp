#include "dtrain/rank/launcher_duties.h"

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/config/profiling.h"

namespace dtrain::rank {
namespace {

// The module links analysis, which registers the rules.
void load_rules() {
  launcher_duties();
}

// Before main(): an experiment file may be the first thing that a rank reads.
[[maybe_unused]] const bool kFindsRules = config::find_rules_by(load_rules);

}  // namespace

const LauncherDuties& launcher_duties() {
  static const LauncherDuties duties = [] {
    void* const factory = open_module<ConfigError>({.name = "dtrain_launcher_duties",
                                                    .needs = {},
                                                    .factory = "dtrain_launcher_duties",
                                                    .what = "the part of dtrain that has the rules and the report",
                                                    .remedy_needs = "",
                                                    .remedy_module = "build it (make build), or install dtrain anew"});
    return reinterpret_cast<LauncherDuties (*)()>(factory)();
  }();
  return duties;
}

}  // namespace dtrain::rank
