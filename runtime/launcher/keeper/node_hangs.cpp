// Ranks that hang on one of several hosts, each with a keeper of its own.
#include <chrono>
#include <thread>

#include "keeper/node_ranks.h"

namespace dtrain::launcher {
namespace {

constexpr Nanoseconds kPeriod = std::chrono::milliseconds(500);
constexpr std::chrono::milliseconds kAnswer{100};  // of host 0
constexpr const char* kNone = "none";

std::vector<SeenRank> ranks_of(const Json& told) {
  std::vector<SeenRank> ranks;
  for (const Json& rank : told.at("ranks")) ranks.push_back(seen_rank_of(rank));
  return ranks;
}

}  // namespace

NodeHangs::NodeHangs(const config::Recovery& recovery, const rank::NodeEnvironment& node, int attempt)
    : watches_(recovery.watches_for_hangs()),
      node_(node),
      key_("hang/" + std::to_string(attempt)),
      watch_(recovery.hang_time(), clock_),
      last_looks_(static_cast<std::size_t>(node.nodes), -1) {}

std::string NodeHangs::key_of(int host) const {
  return key_ + "/" + std::to_string(host);
}

std::optional<HangReport> NodeHangs::look(const std::vector<WatchedRank>& ranks, rank::Keepers& keepers,
                                          const std::filesystem::path& run_dir) {
  const Nanoseconds now = clock_.monotonic();
  if (!watches_ || is_decided_ || now < next_look_) return std::nullopt;
  next_look_ = now + kPeriod;
  Json seen = Json::array();
  for (const SeenRank& rank : look_at(ranks)) seen.push_back(to_json(rank));
  try {
    keepers.tell(key_of(node_.rank), {{"look", looks_++}, {"ranks", seen}});
    if (node_.rank == 0) decide(keepers);
    const auto verdict = keepers.hear(key_, kAnswer);
    if (!verdict || *verdict == kNone) return std::nullopt;
    is_decided_ = true;
    const Hang hang{.ranks = verdict->at("hang").get<std::vector<int>>(),
                    .still = Nanoseconds(verdict->at("still").get<std::int64_t>())};
    const std::vector<SeenRank> all = ranks_of(*verdict);
    const rank::RunFolder folder{run_dir};
    write_flight_records(ranks, all.size(), folder);
    std::this_thread::sleep_for(kPeriod);  // the other keepers write what their ranks wait for, too
    return end_hanging(hang, ranks, all, folder);
  } catch (const CommError&) {
    return std::nullopt;  // a host is lost, which ends the attempt
  }
}

// On host 0. Nothing is decided while a keeper does not look: the watch then begins anew.
void NodeHangs::decide(rank::Keepers& keepers) {
  if (looks_ == 1) keepers.tell(key_, kNone);
  Json all = Json::array();
  std::vector<int> looks;
  for (int host = 0; host < node_.nodes; ++host) {
    const auto told = keepers.hear(key_of(host), std::chrono::milliseconds(0));
    if (!told || told->at("look") == last_looks_[static_cast<std::size_t>(host)]) return;
    looks.push_back(told->at("look").get<int>());
    for (const Json& rank : told->at("ranks")) all.push_back(rank);
  }
  last_looks_ = std::move(looks);
  const auto hang = find_hang(watch_, ranks_of({{"ranks", all}}));
  if (hang) keepers.tell(key_, {{"hang", hang->ranks}, {"still", hang->still.count()}, {"ranks", all}});
}

}  // namespace dtrain::launcher
