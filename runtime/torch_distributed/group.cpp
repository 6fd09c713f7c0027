#include "group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include "dtrain/comm/backend_list.h"

namespace dtrain::torch_distributed {
namespace {

comm::RankSpread spread_of(const World& world, const std::vector<int>& members) {
  std::map<int, int> ranks_of_host;
  for (const int member : members) ++ranks_of_host[world.host_of(member)];
  comm::RankSpread spread{.hosts = ranks_of_host.size(), .most_on_a_host = 1, .has_mpi = false};
  for (const auto& [host, ranks] : ranks_of_host) spread.most_on_a_host = std::max(spread.most_on_a_host, ranks);
  return spread;
}

}  // namespace

Group::Group(const Meeting& meeting) : rank_(meeting.rank) {
  Place place = meet(meeting);
  world_ = std::move(place.world);
  members_ = std::move(place.members);
  for (const int member : members_) names_.push_back(world_->name_of(member));
  number_ = place.number;
  arena_ = world_->arena();
  mail_ = world_->mail();
  flight_ = world_->flight();
  log_ = world_->log();
  processes_ = world_->processes();
  control_ = &world_->control();
  if (!place.is_first) {
    subgroup_ = comm::make_subgroup(world_->control(), "torch/" + std::to_string(number_), members_);
    control_ = subgroup_.get();
  }
  const comm::BackendParts parts{.control = *control_,
                                 .members = names_,
                                 .mpi = nullptr,
                                 .address = world_->address(),
                                 .options = {.timeout = meeting.timeout, .log = world_->log(), .arena = arena_}};
  const comm::Backend backend = comm::automatic_backend(spread_of(*world_, members_));
  communicator_ = std::visit([&](const auto& held) { return held.make(parts); }, backend);
}

Group::~Group() {
  release();
}

void Group::collect(std::vector<WorkPtr>& ended) {
  while (!works_.empty() && works_.front()->test()) {  // they end in the order of issue
    ended.push_back(std::move(works_.front()));
    works_.pop_front();
  }
}

std::shared_ptr<void> Group::release() {
  struct Carrier {  // the communicator is destroyed first
    std::shared_ptr<World> world;
    std::shared_ptr<comm::Communicator> communicator;
  };
  const std::scoped_lock lock(communicator_mutex_);
  return std::make_shared<Carrier>(std::move(world_), std::exchange(communicator_, nullptr));
}

FlightEntry Group::record(FlightRecord& record) {
  std::call_once(is_in_records_, [this] {
    const auto [name, description] = titles_();
    place_in_records_ = flight_->add_group(name, description, names_);
  });
  record.group = place_in_records_;
  record.rank = rank_;
  return {flight_, record};
}

void Group::abort(const std::string& cause) {
  const std::scoped_lock lock(communicator_mutex_);
  if (communicator_) communicator_->abort(cause);
}

at::Tensor Group::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  if (!arena_) return at::empty(sizes, options);
  const std::int64_t count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  const auto bytes = static_cast<std::size_t>(count) * options.dtype().itemsize();
  void* const data = arena_->allocate(bytes);
  return at::from_blob(
      data, sizes, [arena = arena_](void* memory) { arena->free(memory); }, options);
}

}  // namespace dtrain::torch_distributed
