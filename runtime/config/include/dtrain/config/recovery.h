// How a run goes on after a rank has died. Plain values and their keys.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

extern const TextRule kHangTime;

struct Recovery {
  std::string hang = "auto";  // or "off", or seconds
  bool operator==(const Recovery&) const = default;

  bool watches_for_hangs() const { return hang != "off"; }
  // Returns the time after which a rank without progress hangs; empty: its own batches decide.
  std::optional<std::chrono::milliseconds> hang_time() const;
};

inline void declare_keys(Keys& keys, Recovery& recovery) {
  keys.text({.name = "hang",
             .text = "The seconds after which a rank that does not get on while others wait for it is ended, and "
                     "started again. auto: 20 times the slowest of the last batches, at least 10; off: never, but "
                     "after communication.timeout.",
             .more = "[More](recovery.md#ranks-that-hang).",
             .examples = R"(["auto", "off", 30])"},
            recovery.hang, kHangTime);
}

}  // namespace dtrain::config
