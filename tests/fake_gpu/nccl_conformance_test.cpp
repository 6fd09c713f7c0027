// The nccl backend over the fake NCCL, among processes: the conformance suite.
#include <map>

#include "gpu_ranks.h"
#include "harness/conformance.h"
#include "harness/forwarding_communicator.h"

namespace dtrain::test {
namespace {

// The suite writes and reads Buffers on the host. Here it does so where the fake's kernels find device memory.
class HostView final : public ForwardingCommunicator {
 public:
  HostView(comm::Communicator& inner, FakeGpus& gpus) : ForwardingCommunicator(inner), gpus_(gpus) {}

  std::unique_ptr<comm::Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<View>(*this, inner_.allocate(bytes));
  }

 private:
  class View final : public comm::Buffer {
   public:
    View(HostView& owner, std::unique_ptr<comm::Buffer> inner) : owner_(owner), inner_(std::move(inner)) {
      const auto device = inner_->bytes();
      seen_ = {static_cast<std::byte*>(owner_.gpus_.alias(device.data())), device.size()};
      owner_.views_[seen_.data()] = device;
    }
    ~View() override { owner_.views_.erase(seen_.data()); }
    std::span<std::byte> bytes() override { return seen_; }

   private:
    HostView& owner_;
    std::unique_ptr<comm::Buffer> inner_;
    std::span<std::byte> seen_;
  };

  void* place_of(const void* data) const override {
    auto* const address = static_cast<std::byte*>(const_cast<void*>(data));
    auto view = views_.upper_bound(address);
    if (view == views_.begin()) return address;
    --view;
    const auto& [begin, on_device] = *view;
    return address <= begin + on_device.size() ? on_device.data() + (address - begin) : address;
  }

  FakeGpus& gpus_;
  std::map<std::byte*, std::span<std::byte>> views_;  // Buffers, by where the host sees them
};

class FakeNcclConformance : public testing::TestWithParam<int> {};

TEST_P(FakeNcclConformance, Holds) {
  const TestWorld world(GetParam());
  expect_gpu_ranks(GetParam(), [&](const GpuRank& rank) {
    const auto communicator = rank.connect(world);
    HostView view(*communicator, rank.gpus);
    // On odd numbers of ranks some launch operations in the background for a while, and others at once.
    rank.gpus.delay_queries(world.size % 2 != 0 ? communicator->rank() % 2 : 0);
    for (const auto& one : conformance_cases({.rank_order = false,
                           .wide_sums = false,
                           .exact_scaling = false,
                           .nan_wins = false,
                           .every_reduction = false})) {
      SCOPED_TRACE(one.name + " on " + std::to_string(world.size) + " ranks");
      one.run(view);
    }
    EXPECT_GT(rank.gpus.take_counts().nccl_operations, 1000);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclConformance, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace dtrain::test
