#include "dtrain/checkpoint/host_states.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestLineageFile = 64 << 10;

Json to_json(const std::vector<HostStates::State>& states) {
  Json json = Json::array();
  for (const auto& state : states) {
    json.push_back({{"step", state.step}, {"epoch", state.epoch}, {"world", state.world}, {"ranks", state.ranks}});
  }
  return json;
}

std::vector<HostStates::State> states_of(const Json& json) {
  std::vector<HostStates::State> states;
  for (const Json& state : json) {
    states.push_back({state.at("step").get<std::int64_t>(), state.at("epoch").get<std::int64_t>(),
                      state.at("world").get<int>(), state.at("ranks").get<std::vector<int>>()});
  }
  return states;
}

std::string lineage_in(const fs::path& folder) {
  try {
    return text_at(parse_if_valid(read_file(folder / kLineageFile, kLargestLineageFile)).value_or(Json()), "id");
  } catch (const Error&) {
    return {};
  }
}

std::vector<HostStates::State> own_on_board(const fs::path& folder) {
  std::map<std::int64_t, HostStates::State> by_batch;
  try {
    const GenerationBoard board(folder);
    for (int rank = 0; rank < board.ranks(); ++rank) {
      for (const std::int64_t batch : board.batches_of(rank)) {
        HostStates::State& state = by_batch[batch];
        state.step = batch;
        state.epoch = board.published(rank, batch)->epoch;
        state.world = board.world();
        state.ranks.push_back(board.number(rank));
      }
    }
  } catch (const SystemError&) {  // there is no board
  }
  std::vector<HostStates::State> states;
  for (auto& [batch, state] : by_batch) states.push_back(std::move(state));
  return states;
}

// The ranks whose files are in a part; none if a running rank gives the part up meanwhile.
std::vector<int> ranks_of_part(const fs::path& folder, int world) {
  Manifest manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const Error&) {
    return {};
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < world; ++rank) {
    const auto is_own = [&](const ManifestFile& file) { return file.name == rank_file(rank); };
    if (std::ranges::any_of(manifest.files, is_own)) ranks.push_back(rank);
  }
  return ranks;
}

// The ranks whose own state in the parts of this state no host has.
std::vector<int> ranks_missing(const std::vector<HostStates>& hosts, const Lineage& last, const HostStates::State& of) {
  std::set<int> there;
  for (const HostStates& host : hosts) {
    if (!last.has(host.lineage, of.step)) continue;
    for (const auto& part : host.parts) {
      if (part.step == of.step && part.world == of.world) there.insert(part.ranks.begin(), part.ranks.end());
    }
  }
  std::vector<int> missing;
  for (int rank = 0; rank < of.world; ++rank) {
    if (!there.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code); !code && entry != fs::directory_iterator(); entry.increment(code)) {
    paths.push_back(entry->path());
  }
  return paths;
}

}  // namespace

bool Lineage::has(const std::string& other, std::int64_t state) const {
  if (other.empty()) return false;
  return other == id || (state == step && std::ranges::find(before, other) != before.end());
}

Json to_json(const Lineage& lineage) {
  return {{"id", lineage.id}, {"before", lineage.before}, {"step", lineage.step}};
}

Lineage lineage_of(const Json& json) {
  try {
    return {json.at("id").get<std::string>(), json.at("before").get<std::vector<std::string>>(),
            json.at("step").get<std::int64_t>()};
  } catch (const Json::exception&) {
    return {};
  }
}

Json to_json(const HostStates& states) {
  return {{"lineage", states.lineage},
          {"whole", to_json(states.whole)},
          {"shared", to_json(states.shared)},
          {"own", to_json(states.own)},
          {"parts", to_json(states.parts)}};
}

HostStates host_states_of(const Json& json) {
  return {json.at("lineage").get<std::string>(), states_of(json.at("whole")), states_of(json.at("shared")),
          states_of(json.at("own")), states_of(json.at("parts"))};
}

HostStates look_at_host(const fs::path& folder) {
  HostStates states;
  if (!is_own_folder(folder)) return states;
  states.lineage = lineage_in(folder);
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename();
    const bool shared = step_of(name, kSharedPrefix).has_value(), part = step_of(name, kPartPrefix).has_value();
    if (!shared && !part && !step_of(name, kStepPrefix)) continue;
    const Entry entry = look_at(path);
    if (!entry.damage.empty()) continue;
    HostStates::State state{entry.about.step, entry.about.epoch, entry.about.world_size, {}};
    if (part) state.ranks = ranks_of_part(path, state.world);
    (shared ? states.shared : part ? states.parts : states.whole).push_back(std::move(state));
  }
  states.own = own_on_board(folder);
  return states;
}

std::optional<ChosenState> choose_state(const std::vector<HostStates>& hosts, const Lineage& last, int world) {
  std::optional<ChosenState> chosen;
  // Of states of one batch the one for which the least is left to do.
  const auto offer = [&](const HostStates::State& state, StateKind kind) {
    if (!chosen || state.step > chosen->step || (state.step == chosen->step && kind < chosen->kind)) {
      chosen = {state.step, state.epoch, kind};
    }
  };
  const auto all_own_are_there = [&](std::int64_t step) {
    std::set<int> ranks;
    for (const HostStates& host : hosts) {
      if (!last.has(host.lineage, step)) continue;
      for (const auto& own : host.own) {
        if (own.step == step && own.world == world) ranks.insert(own.ranks.begin(), own.ranks.end());
      }
    }
    return ranks.size() == static_cast<std::size_t>(world);
  };
  for (const HostStates& host : hosts) {
    for (const auto& state : host.whole) {
      if (last.has(host.lineage, state.step)) offer(state, StateKind::kWhole);
    }
    for (const auto& state : host.parts) {
      if (last.has(host.lineage, state.step) && ranks_missing(hosts, last, state).empty()) {
        offer(state, StateKind::kParts);
      }
    }
    for (const auto& state : host.shared) {
      const bool fits = last.has(host.lineage, state.step) && state.world == world;
      if (fits && all_own_are_there(state.step)) offer(state, StateKind::kShared);
    }
  }
  return chosen;
}

std::optional<LostState> lost_state(const std::vector<HostStates>& hosts, const Lineage& last,
                                    const std::optional<ChosenState>& chosen) {
  std::optional<LostState> lost;
  for (const HostStates& host : hosts) {
    for (const auto& state : host.parts) {
      const std::int64_t furthest = std::max(chosen ? chosen->step : -1, lost ? lost->step : -1);
      if (state.step > furthest && last.has(host.lineage, state.step)) {
        lost = LostState{state.step, ranks_missing(hosts, last, state)};
      }
    }
  }
  return lost;
}

std::vector<int> hosts_with_copies_of(int host, int hosts, int copies) {
  std::vector<int> result;
  for (int next = 1; next <= std::min(copies, hosts - 1); ++next) result.push_back((host + next) % hosts);
  return result;
}

fs::path part_folder(const fs::path& folder, std::int64_t step) {
  return folder / folder_name(kPartPrefix, step);
}

fs::path whole_folder(const fs::path& folder, std::int64_t step) {
  return folder / step_folder(step);
}

fs::path gathered_folder(const fs::path& folder, std::int64_t step) {
  return folder / folder_name(kGatheredPrefix, step);
}

fs::path shared_folder(const fs::path& folder, std::int64_t step) {
  return folder / folder_name(kSharedPrefix, step);
}

void begin_lineage(const fs::path& folder, const std::string& id, std::optional<std::int64_t> step) {
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename();
    const auto whole = step_of(name, kStepPrefix);
    const bool is_state = whole || name == kBoardFile || step_of(name, kSharedPrefix) || step_of(name, kPartPrefix) ||
                          step_of(name, kGatheredPrefix);
    if (is_state && !(whole && whole == step)) delete_tree(path);
  }
  write_file_atomic(folder / kLineageFile, to_line({{"id", id}}) + "\n");
}

}  // namespace dtrain::checkpoints
