// How a run goes on after a rank has died. Plain values and their keys.
#pragma once

#include <optional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

extern const TextRule kStateInterval;

struct Recovery {
  std::string interval = "auto";  // or "off", or seconds
  int standby = 1;                // processes of each host that wait to become new ranks
  bool operator==(const Recovery&) const = default;

  bool keeps_states() const { return interval != "off"; }
  // Returns the seconds between two states in memory; empty: their cost decides.
  std::optional<double> seconds_between_states() const;
};

inline void declare_keys(Keys& keys, Recovery& recovery) {
  keys.text({.name = "interval",
             .text = "The seconds between two training states that a run on one machine keeps in memory, from which it "
                     "goes on after a rank has died. auto: as often as it costs at most 1% of the time; off: none.",
             .more = "[More](recovery.md#states-in-memory).",
             .examples = R"(["auto", "off", 5])"},
            recovery.interval, kStateInterval);
  keys.integer({"standby",
                "With 1, a process of the program waits on the host of `dtrain launch`, with its libraries loaded, and "
                "new ranks after a failure are forks of it; 0: they are started anew.",
                "[More](recovery.md#new-ranks-from-a-waiting-process)."},
               recovery.standby, {0, 1});
}

}  // namespace dtrain::config
