#include "control/subgroup.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

// Extra time that the others wait for rank 0. While rank 0 waits for one rank, the deadline of all may pass; it then
// still fetches the values that the rest have set, which takes a round trip to the store for each.
constexpr std::chrono::milliseconds kSubgroupGrace{2'000};
constexpr std::chrono::milliseconds kAsking{250};
constexpr std::chrono::milliseconds kAskingAll{1'000};
constexpr char kFailed = '!';
constexpr char kValues = '=';

// Values may hold any bytes: each is preceded by its length.
void append(std::string& all, const std::string& value) {
  all += std::to_string(value.size()) + ':' + value;
}

std::vector<std::string> split(const std::string& all) {
  std::vector<std::string> values;
  for (std::size_t at = 1; at < all.size();) {
    const std::size_t colon = all.find(':', at);
    const std::size_t length = std::stoul(all.substr(at, colon - at));
    values.push_back(all.substr(colon + 1, length));
    at = colon + 1 + length;
  }
  return values;
}

int place_of(int rank, const std::vector<int>& members) {
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) throw CommError("rank " + std::to_string(rank) + " is not in the group it wants to join");
  return static_cast<int>(found - members.begin());
}

}  // namespace

ControlSubgroup::ControlSubgroup(ControlPlane& parent, const std::string& name, std::vector<int> members)
    : parent_(parent), prefix_("group/" + name + "/"), members_(std::move(members)) {
  world_ = parent_.world();
  world_.rank = place_of(parent_.world().rank, members_);
  world_.size = static_cast<int>(members_.size());
  const std::vector<std::string> hosts = gather("hosts", world_.host);
  const auto here = static_cast<std::size_t>(world_.rank);
  world_.local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), world_.host));
  world_.local_rank =
      static_cast<int>(std::count(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(here), world_.host));
}

// Rank 0 of the group reads the others' values one by one from the parent's store. After the deadline rank 0 still
// tries the rest of the list for a moment, so the error names all missing ranks, not only the first.
std::string ControlSubgroup::collect(const std::string& where, const std::string& own) {
  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + timeout();
  std::string all(1, kValues);
  append(all, own);
  std::string missing;
  for (int r = 1; r < world_.size; ++r) {
    const auto now = steady_clock::now();
    const auto until = std::max(deadline, std::min(now + kAsking, deadline + kAskingAll));
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    const auto value = parent_.get_within(where + std::to_string(r), std::max(left, std::chrono::milliseconds{1}));
    if (value) {
      append(all, *value);
    } else {
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(members_[static_cast<std::size_t>(r)]) +
                 " (" + std::string(name_of(peer_state(r))) + ")";
    }
  }
  return missing.empty() ? all : kFailed + missing;
}

std::vector<std::string> ControlSubgroup::gather(const std::string& name, const std::string& value) {
  int round = 0;
  {
    const std::scoped_lock lock(mutex_);
    round = rounds_[name]++;
  }
  const std::string where = prefix_ + "gather/" + name + "/" + std::to_string(round) + "/";
  std::string all;
  if (world_.rank == 0) {
    all = collect(where, value);
    if (world_.size > 1) parent_.set(where + "all", all);
  } else {
    parent_.set(where + std::to_string(world_.rank), value);
    auto result = parent_.get_within(where + "all", timeout() + kSubgroupGrace);
    all = result ? *std::move(result)
                 : kFailed + ("rank " + std::to_string(members_[0]) + " (" + std::string(name_of(peer_state(0))) + ")");
  }
  if (all[0] == kFailed) {
    throw CommError("control: gather '" + name + "' among " + std::to_string(world_.size) +
                    " ranks was not complete within " + format_duration(timeout()) + "; missing: " + all.substr(1));
  }
  return split(all);
}

PeerState ControlSubgroup::peer_state(int rank) const {
  return parent_.peer_state(members_.at(static_cast<std::size_t>(rank)));
}

std::unique_ptr<ControlPlane> make_subgroup(ControlPlane& parent, const std::string& name, std::vector<int> members) {
  return std::make_unique<ControlSubgroup>(parent, name, std::move(members));
}

}  // namespace dtrain::comm
