// A run on several hosts, each with a keeper, has a folder for states in memory on every host (memory_folder.h). This
// is what each host has in it, and from which state all of them go on. Plain values; any thread.
//
// A whole state is taken by the clock, and is the same on every host: one host is enough. When a rank dies, survivors
// save a shared state: what all ranks have alike. The rest of that state, what is each rank's own, is on the boards
// (generation_slots.h) of the ranks' hosts, which outlive them. Together they are a whole state again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::checkpoints {

// The attempt that writes states, in the plan of the run and in each folder. A host that was away may have states of an
// earlier one, which do not count: the run may have gone on without it from a state before them.
struct Lineage {
  std::string id;                   // of the attempt; empty: none
  std::vector<std::string> before;  // attempts whose state of `step` this one has begun with
  std::int64_t step = -1;

  bool has(const std::string& other, std::int64_t state) const;
};
Json to_json(const Lineage& lineage);
Lineage lineage_of(const Json& json);  // as to_json() made it; anything else: an empty one

struct HostStates {
  struct State {
    std::int64_t step = 0, epoch = 0;
    int world = 1;           // the ranks of the run
    std::vector<int> ranks;  // own: whose it is
  };
  std::string lineage;
  std::vector<State> whole, shared, own;
};
Json to_json(const HostStates& states);
HostStates host_states_of(const Json& json);

// Reads names, manifests and the board. A folder that is not there, or not this user's alone, has none.
HostStates look_at_host(const std::filesystem::path& folder);

struct ChosenState {
  std::int64_t step = 0, epoch = 0;
  bool whole = true;  // false: it is to be made of shared and own states
};
// Returns the furthest state that the hosts have together. `last`: of the attempt before; `world`: the ranks of the
// next one, which read a state that is not whole only if they are as many.
std::optional<ChosenState> choose_state(const std::vector<HostStates>& hosts, const Lineage& last, int world);

// Where a host has a whole state, its parts of one that is not whole yet, and a shared state.
std::filesystem::path whole_folder(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path gathered_folder(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path shared_folder(const std::filesystem::path& folder, std::int64_t step);

// The folder is that of a new attempt, which has begun with the whole state of `step`, or with none of them. All other
// states are removed. SystemError.
void begin_lineage(const std::filesystem::path& folder, const std::string& id, std::optional<std::int64_t> step);

}  // namespace dtrain::checkpoints
