// A run on several hosts, each with a keeper, has a folder for states in memory on every host (memory_folder.h). This
// is what each host has in it, and from which state all of them go on. Plain values; any thread.
//
// A state by the clock is in parts: each host has what all ranks have alike, what is its own ranks' own, and a copy of
// what belongs to the ranks of the hosts before it (recovery.copies). Parts of enough hosts are a whole state. When the
// ranks start again, the chosen state is made whole on every host; one host is enough for such a state.
//
// When a rank dies, survivors save a shared state: what all ranks have alike. The rest of that state, what is each
// rank's own, is on the boards (generation_slots.h) of the ranks' hosts, which outlive them. Together they are a whole
// state.
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
    std::vector<int> ranks;  // own, part: whose it is
  };
  std::string lineage;
  std::vector<State> whole, shared, own;
  std::vector<State> parts{};
};
Json to_json(const HostStates& states);
HostStates host_states_of(const Json& json);

// Reads names, manifests and the board. A folder that is not there, or not this user's alone, has none.
HostStates look_at_host(const std::filesystem::path& folder);

// How a state lies on the hosts: as a whole, in parts, or as a shared state with the own states of all ranks.
enum class StateKind { kWhole, kParts, kShared };

struct ChosenState {
  std::int64_t step = 0, epoch = 0;
  StateKind kind = StateKind::kWhole;
};
// Returns the furthest state that the hosts have together. `last`: of the attempt before; `world`: the ranks of the
// next one, which read a state that is not whole only if they are as many.
std::optional<ChosenState> choose_state(const std::vector<HostStates>& hosts, const Lineage& last, int world);

// The furthest state in parts that no choice can have because some of it is lost.
struct LostState {
  std::int64_t step = 0;
  std::vector<int> ranks;  // whose own state no host has, ascending
};
// Returns it if it is further than `chosen`, which choose_state() has returned.
std::optional<LostState> lost_state(const std::vector<HostStates>& hosts, const Lineage& last,
                                    const std::optional<ChosenState>& chosen);

// The hosts, counted from 0, that keep a copy of what belongs to the ranks of `host`: the next ones in the ring.
std::vector<int> hosts_with_copies_of(int host, int hosts, int copies);

// Where a host has a whole state, its part of one, its files of one that is being made whole, and a shared state.
std::filesystem::path part_folder(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path whole_folder(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path gathered_folder(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path shared_folder(const std::filesystem::path& folder, std::int64_t step);

// The folder is that of a new attempt, which has begun with the whole state of `step`, or with none of them. All other
// states are removed. SystemError.
void begin_lineage(const std::filesystem::path& folder, const std::string& id, std::optional<std::int64_t> step);

}  // namespace dtrain::checkpoints
