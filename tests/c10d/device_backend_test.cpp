// The backend for several kinds of devices over a group of PyTorch's that exchanges nothing.
#include "dtrain/torch_distributed/device_backend.h"

#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dtrain/torch_distributed/observer.h"

namespace dtrain::torch_distributed {
namespace {

struct Seen {
  std::string name;
  EndedOperation facts;
};

class Recorder final : public Observer {
 public:
  bool begin_wait() override { return false; }
  void end_wait() override {}
  int bucket() override { return -1; }
  void ended(const EndedOperation& operation) override {
    const std::scoped_lock lock(mutex_);
    seen_.push_back({std::string(operation.name), operation});
  }
  std::vector<Seen> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(seen_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Seen> seen_;
};

Recorder& recorder() {
  static Recorder the_recorder;
  return the_recorder;
}

class DeviceBackendTest : public testing::Test {
 protected:
  DeviceBackendTest() { observe(recorder()); }

  c10::intrusive_ptr<DeviceBackend> make_group(int size) {
    c10d::DistributedBackendOptions group;
    group.store = c10::make_intrusive<c10d::HashStore>();
    group.group_rank = 0;
    group.group_size = size;
    group.timeout = std::chrono::seconds(30);
    group.group_id = "0";
    const auto make = [this](const c10d::DistributedBackendOptions& options, const DeviceBackend::OptionsPtr&, c10::Device,
                             bool) -> DeviceBackend::Part {
      ++made_;
      return c10d::FakeProcessGroup::_create_internal(options.group_rank, options.group_size);
    };
    return c10::make_intrusive<DeviceBackend>(group, DeviceBackend::Parts{}, make, nullptr);
  }

  int made_ = 0;
};

TEST_F(DeviceBackendTest, MakesItsPartOnceWhenItIsUsed) {
  const auto group = make_group(2);
  EXPECT_FALSE(group->device_part());
  EXPECT_EQ(group->getSequenceNumberForGroup(), 0U);
  group->setTimeout(std::chrono::seconds(5));
  std::vector<at::Tensor> tensors{at::ones({4})};
  group->allreduce(tensors, {})->wait();
  group->allreduce(tensors, {})->wait();
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(group->getBackendOptions()->backend, "fake");
}

TEST_F(DeviceBackendTest, TellsWhatHasEnded) {
  const auto group = make_group(2);
  std::vector<at::Tensor> tensors{at::ones({4})};
  group->allreduce(tensors, {});
  group->send(tensors, 1, 0);
  at::Tensor output = at::empty({8}), input = at::ones({4});
  c10d::AllgatherOptions sync;
  sync.asyncOp = false;
  group->_allgather_base(output, input, sync);
  group->shutdown();
  const std::vector<Seen> seen = recorder().take();
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].name, "all_reduce");
  EXPECT_EQ(seen[0].facts.bytes, 16);
  EXPECT_EQ(seen[0].facts.sequence, 1U);
  EXPECT_EQ(seen[0].facts.group_size, 2);
  EXPECT_EQ(seen[1].name, "send");
  EXPECT_EQ(seen[1].facts.sequence, 0U);
  EXPECT_EQ(seen[2].name, "all_gather");
  EXPECT_EQ(seen[2].facts.bytes, 32);
  EXPECT_EQ(seen[2].facts.sequence, 2U);
  for (const Seen& one : seen) {
    EXPECT_LE(one.facts.enqueued_ns, one.facts.started_ns);
    EXPECT_LE(one.facts.started_ns, one.facts.ended_ns);
  }
}

TEST_F(DeviceBackendTest, CoalescedOperationsAreOne) {
  const auto group = make_group(2);
  std::vector<at::Tensor> tensors{at::ones({4})};
  group->startCoalescing();
  group->allreduce(tensors, {});
  group->allreduce(tensors, {});
  group->endCoalescing()->wait();
  group->shutdown();
  const std::vector<Seen> seen = recorder().take();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].facts.bytes, 32);
}

TEST_F(DeviceBackendTest, SplitsOnceForAllDevices) {
  const auto group = make_group(2);
  const auto options = c10::make_intrusive<c10d::Backend::Options>("dtrain");
  options->group_name = "half";
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const DeviceBackend::Part child = group->split(store, {0}, options);
  ASSERT_TRUE(child);
  EXPECT_EQ(child->getSize(), 1);
  EXPECT_EQ(group->split(store, {0}, options).get(), child.get());
  options->group_name = "other half";
  EXPECT_FALSE(group->split(store, {1}, options));
}

}  // namespace
}  // namespace dtrain::torch_distributed
