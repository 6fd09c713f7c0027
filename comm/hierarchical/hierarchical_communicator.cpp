#include "dtrain/comm/hierarchical.h"

#include <new>

#include "collective/issuing.h"
#include "collective/local_memory.h"
#include "collective/release_pages.h"
#include "control/subgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "hierarchical/hierarchical_core.h"

namespace dtrain::comm {
namespace {

// The Buffer of a rank that is alone on its host and so shares no memory.
class OwnBuffer final : public Buffer {
 public:
  OwnBuffer(std::shared_ptr<HierarchicalCore> core, std::size_t bytes)
      : core_(std::move(core)), data_(allocate_zeroed(bytes)), bytes_(bytes) {}
  // After a failure the outer level may still send from this memory, until the process ends.
  ~OwnBuffer() override {
    if (core_->failed()) static_cast<void>(new (std::nothrow) std::shared_ptr<std::byte>(data_));
  }
  std::span<std::byte> bytes() override { return {data_.get(), bytes_}; }
  std::size_t release(std::size_t begin, std::size_t count) override {
    return release_pages(bytes().subspan(begin, count), PageKind::kPrivate);
  }

 private:
  std::shared_ptr<HierarchicalCore> core_;
  std::shared_ptr<std::byte> data_;
  std::size_t bytes_;
};

// The control planes of the levels, which outlive their communicators.
struct Groups {
  std::unique_ptr<ControlSubgroup> host;
  std::unique_ptr<ControlSubgroup> leaders;
};

class HierarchicalCommunicator final : public IssuingCommunicator {
 public:
  HierarchicalCommunicator(std::string name, std::uint32_t generation, Groups groups,
                           const std::shared_ptr<HierarchicalCore>& core)
      : name_(std::move(name)), generation_(generation), groups_(std::move(groups)), core_(core) {}
  ~HierarchicalCommunicator() override { core_->close(); }

  int rank() const override { return core_->rank(); }
  int world_size() const override { return core_->world_size(); }
  std::uint32_t generation() const override { return generation_; }
  std::string_view backend() const override { return name_; }

  // All ranks compare the allocation before the levels make it.
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    agree(Kind::kAllocate, bytes, core_->group_open());
    Communicator* const host = core_->levels().on[static_cast<std::size_t>(Step::kUp)].get();
    if (host) return host->allocate(bytes);
    return std::make_unique<OwnBuffer>(core_, bytes);
  }
  std::unique_ptr<Buffer> allocate_common(std::size_t bytes) override {
    agree(Kind::kAllocateCommon, bytes, core_->group_open());
    const Levels& levels = core_->levels();
    if (levels.several_hosts()) return nullptr;
    Communicator* const host = levels.on[static_cast<std::size_t>(Step::kUp)].get();
    if (host) return host->allocate_common(bytes);
    return std::make_unique<OwnBuffer>(core_, bytes);
  }
  void begin_group() override { core_->begin_group(); }
  void end_group() override { core_->end_group(); }
  void progress() override { core_->progress(); }
  void abort(const std::string& cause) override { core_->abort(cause); }

 private:
  Work issue(const Descriptor& descriptor, const void* in, void* out) override {
    return Work(core_->issue(descriptor, in, out));
  }

  const std::string name_;
  const std::uint32_t generation_;
  const Groups groups_;
  const std::shared_ptr<HierarchicalCore> core_;
};

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(ControlPlane& control, const MakeCommunicator& local,
                                                             const MakeCommunicator& outer,
                                                             const CommunicatorOptions& options,
                                                             const std::string& name) {
  const World& world = control.world();
  // The communicator has its own name, because there may be another communicator of this generation.
  constexpr std::size_t kIdBytes = 16;
  auto names = control.gather("comm/hierarchical", random_hex(kIdBytes / 2) + world.host);
  const std::string id = names[0].substr(0, kIdBytes) + "/";
  for (std::string& name : names) name.erase(0, kIdBytes);
  Groups groups;  // outlive the levels
  Levels levels{world.rank, Placement(names), {}};
  const auto make = [&](const MakeCommunicator& maker, ControlPlane& plane, const std::vector<int>& members,
                        std::initializer_list<Step> steps) {
    for (const Step step : steps) levels.on[static_cast<std::size_t>(step)] = maker(plane, members);
  };
  if (levels.several_here()) {
    groups.host = std::make_unique<ControlSubgroup>(control, id + std::to_string(levels.host()), levels.here());
    make(local, *groups.host, levels.here(), {Step::kNotes, Step::kUp, Step::kDown});
  }
  if (levels.several_hosts() && levels.is_leader()) {
    std::vector<int> leaders;
    for (const auto& ranks : levels.placement.hosts) leaders.push_back(ranks[0]);
    groups.leaders = std::make_unique<ControlSubgroup>(control, id + "leaders", leaders);
    make(outer, *groups.leaders, leaders, {Step::kOuterNotes, Step::kOuter});
  }
  auto core = std::make_shared<HierarchicalCore>(std::move(levels), options);
  // The callback may outlive the communicator.
  control.on_failure([weak = std::weak_ptr<HierarchicalCore>(core)](const RankFailure& failure) {
    if (const auto alive = weak.lock()) alive->abort(failure_text(failure));
  });
  return std::make_unique<HierarchicalCommunicator>(name, control.generation(), std::move(groups), core);
}

}  // namespace dtrain::comm
