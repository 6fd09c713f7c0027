// The limits of a request or an allocation.
#pragma once

namespace dtrain::scheduler {

inline constexpr int kMostSlots = 65536;  // of one trial, and of one agent; the experiment's schema has the same bound

}  // namespace dtrain::scheduler
