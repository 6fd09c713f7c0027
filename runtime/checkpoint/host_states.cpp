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
          {"own", to_json(states.own)}};
}

HostStates host_states_of(const Json& json) {
  return {json.at("lineage").get<std::string>(), states_of(json.at("whole")), states_of(json.at("shared")),
          states_of(json.at("own"))};
}

HostStates look_at_host(const fs::path& folder) {
  HostStates states;
  if (!is_own_folder(folder)) return states;
  states.lineage = lineage_in(folder);
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename();
    const bool shared = step_of(name, kSharedPrefix).has_value();
    if (!shared && !step_of(name, kStepPrefix)) continue;
    const Entry entry = look_at(path);
    if (!entry.damage.empty()) continue;
    (shared ? states.shared : states.whole)
        .push_back({entry.about.step, entry.about.epoch, entry.about.world_size, {}});
  }
  states.own = own_on_board(folder);
  return states;
}

std::optional<ChosenState> choose_state(const std::vector<HostStates>& hosts, const Lineage& last, int world) {
  std::optional<ChosenState> chosen;
  const auto offer = [&](const HostStates::State& state, bool whole) {
    if (!chosen || state.step > chosen->step || (state.step == chosen->step && whole)) {
      chosen = {state.step, state.epoch, whole};
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
      if (last.has(host.lineage, state.step)) offer(state, /*whole=*/true);
    }
    for (const auto& state : host.shared) {
      const bool fits = last.has(host.lineage, state.step) && state.world == world;
      if (fits && all_own_are_there(state.step)) offer(state, /*whole=*/false);
    }
  }
  return chosen;
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
    const bool is_state = whole || name == kBoardFile || step_of(name, kSharedPrefix) || step_of(name, kGatheredPrefix);
    if (is_state && !(whole && whole == step)) delete_tree(path);
  }
  write_file_atomic(folder / kLineageFile, to_line({{"id", id}}) + "\n");
}

}  // namespace dtrain::checkpoints
