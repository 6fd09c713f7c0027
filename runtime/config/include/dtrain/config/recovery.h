// How a run goes on after a rank has died. Plain values and their keys.
#pragma once

#include <optional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

extern const TextRule kStateInterval;

struct Recovery {
  std::string interval = "auto";  // or "off", or seconds
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
}

}  // namespace dtrain::config
