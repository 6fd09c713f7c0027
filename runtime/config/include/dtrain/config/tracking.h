// The trackers in which a run is shown while it trains: experiment trackers of others, each with its own address. Plain
// values.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class TrackerTool { kMlflow, kWandb, kTrackio };
inline constexpr std::array kTrackerTools{Word<TrackerTool>{"mlflow", TrackerTool::kMlflow},
                                          Word<TrackerTool>{"wandb", TrackerTool::kWandb},
                                          Word<TrackerTool>{"trackio", TrackerTool::kTrackio}};

struct Tracker {
  TrackerTool tool = TrackerTool::kMlflow;
  std::string address;  // empty: the tool's own settings name it
  bool operator==(const Tracker&) const = default;
};

// Returns the reason why a text is no address of a tracker, as the continuation of "the address of mlflow"; empty: it
// is one. A password or a key in it is refused, and the reason does not repeat it.
std::string why_no_address(TrackerTool tool, const std::string& address);

std::unique_ptr<KeyType> tracking_form(std::vector<Tracker>& trackers);

}  // namespace dtrain::config
