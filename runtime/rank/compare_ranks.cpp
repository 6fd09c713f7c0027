#include "compare_ranks.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::run {
namespace {

// Returns the first rank whose value differs from rank 0's.
std::optional<int> first_other(const std::vector<std::string>& values) {
  for (std::size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values[0]) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> RankHosts::ranks_here() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < of_rank_.size(); ++rank) {
    if (of_rank_[rank].key == here_.key) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::size_t RankHosts::count() const {
  std::set<std::string> keys;
  for (const Host& host : of_rank_) keys.insert(host.key);
  return keys.size();
}

int RankHosts::most_ranks() const {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const Host& host : of_rank_) most = std::max(most, ++ranks[host.key]);
  return most;
}

std::string RankHosts::agent_name(int rank) const {
  for (const Host& host : of_rank_) {
    // Two hosts with one name need different file names.
    if (host.name == here_.name && host.key != here_.key) return here_.name + "-" + std::to_string(rank);
  }
  return here_.name;
}

RankHosts compare_hosts(comm::ControlPlane& control, const host::HostIdentity& here, const std::string& started_by,
                        bool several_allowed) {
  std::vector<RankHosts::Host> of_rank;
  for (const std::string& text : control.gather("run.hosts", to_line({{"key", here.key}, {"name", here.name}}))) {
    const Json host = Json::parse(text);
    of_rank.push_back({host["key"].get<std::string>(), host["name"].get<std::string>()});
  }
  if (!several_allowed) {
    for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
      if (of_rank[rank].key == of_rank[0].key) continue;
      throw AgreedError(
          "rank " + std::to_string(rank) + " is on another host (" + of_rank[rank].name + ") than rank 0 (" +
              of_rank[0].name + "); " + started_by + " cannot start ranks on several hosts",
          "start all ranks on one host; or with mpirun; or set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK "
          "and LOCAL_WORLD_SIZE for each rank, as torchrun does");
    }
  }
  RankHosts hosts({here.key, here.name}, std::move(of_rank));
  const auto ranks_here = static_cast<int>(hosts.ranks_here().size());
  const bool as_expected = ranks_here == control.world().local_size;
  const auto unexpected = control.gather("run.local_sizes", as_expected ? "" : std::to_string(ranks_here));
  for (std::size_t rank = 0; rank < unexpected.size(); ++rank) {
    if (unexpected[rank].empty()) continue;
    throw AgreedError("rank " + std::to_string(rank) + " shares its machine with " + unexpected[rank] +
                          " ranks, counting itself, which is not what " + started_by + " says",
                      "hosts must have names of their own, and be listed under one name each");
  }
  return hosts;
}

void compare_experiments(comm::ControlPlane& control, const config::Experiment& experiment, const Mock& mock) {
  const std::string mine = config::to_json(experiment).dump() + to_string(mock);
  const auto all = control.gather("run.experiment", std::to_string(std::hash<std::string>{}(mine)));
  if (const auto other = first_other(all)) {
    throw AgreedError("rank " + std::to_string(*other) + " was given another experiment than rank 0",
                      "start every rank with the same experiment file, the same --set and the same --mock");
  }
}

void check_folder_is_shared(comm::ControlPlane& control, const RankHosts& hosts, const std::filesystem::path& folder) {
  if (hosts.count() == 1) return;
  constexpr const char* kKey = "run.shared";
  const bool is_rank_0 = control.world().rank == 0;
  const std::string name = ".shared-" + random_hex(8);
  const std::filesystem::path mark = folder / (is_rank_0 ? name : control.get(kKey));
  if (is_rank_0) {
    std::ofstream(mark).close();
    control.set(kKey, name);
  }
  const auto seen = control.gather(kKey, std::filesystem::exists(mark) ? "yes" : "no");
  if (is_rank_0) std::filesystem::remove(mark);
  if (const auto other = first_other(seen)) {
    throw AgreedError("the run's folder " + folder.string() + " of rank 0 (" + hosts.of(0).name + ") is not on " +
                          hosts.of(*other).name + ", where rank " + std::to_string(*other) + " runs",
                      "give a folder that all hosts share with --run-dir, under the same path everywhere; or start the "
                      "run with `dtrain launch` and launcher: mpi, which collects what the hosts have written");
  }
}

comm::Backend backend_for(const std::optional<comm::Backend>& wanted, const RankHosts& hosts, bool has_mpi) {
  const std::size_t count = hosts.count();
  if (!wanted) {
    return comm::automatic_backend({.hosts = count, .most_on_a_host = hosts.most_ranks(), .has_mpi = has_mpi});
  }
  if (count == 1 || comm::spans_hosts(*wanted)) return *wanted;
  std::vector<std::string> others = comm::words_of_backends(comm::spans_hosts);
  others.insert(others.begin(), comm::kAutoBackend);
  const std::string last = others.back();
  others.pop_back();
  throw AgreedError("communication.backend is " + std::string(word_of(*wanted)) + ", but the ranks are on " +
                        std::to_string(count) + " hosts",
                    "use " + join(others, ", ") + " or " + last);
}

}  // namespace dtrain::run
