// How a run goes on after a rank has died. Plain values and their keys.
#pragma once

#include "dtrain/config/keys.h"

namespace dtrain::config {

struct Recovery {
  int standby = 1;  // processes of each host that wait to become new ranks
  bool operator==(const Recovery&) const = default;
};

inline void declare_keys(Keys& keys, Recovery& recovery) {
  keys.integer({"standby",
                "With 1, a process of the program waits on the host of `dtrain launch`, with its libraries loaded, and "
                "new ranks after a failure are forks of it; 0: they are started anew.",
                "[More](recovery.md#new-ranks-from-a-waiting-process)."},
               recovery.standby, {0, 1});
}

}  // namespace dtrain::config
