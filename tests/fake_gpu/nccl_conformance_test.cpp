// The nccl backend over the fake NCCL, among processes: the conformance suite.
#include <map>

#include "gpu_ranks.h"
#include "harness/conformance.h"

namespace dtrain::test {
namespace {

using comm::DataType;
using comm::ReduceOptions;
using comm::Work;

// The suite writes and reads Buffers on the host. Here it does so where the fake's kernels find device memory.
class HostView final : public comm::Communicator {
 public:
  HostView(comm::Communicator& inner, FakeGpus& gpus) : inner_(inner), gpus_(gpus) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::uint32_t generation() const override { return inner_.generation(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::unique_ptr<comm::Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<View>(*this, inner_.allocate(bytes));
  }
  std::unique_ptr<comm::Buffer> allocate_common(std::size_t bytes) override { return inner_.allocate_common(bytes); }
  using Communicator::all_reduce;
  Work all_reduce(const void* in, void* out, std::size_t count, DataType type, const ReduceOptions& options) override {
    return inner_.all_reduce(device(in), device(out), count, type, options);
  }
  Work reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                      const ReduceOptions& options) override {
    return inner_.reduce_scatter(device(in), device(out), count, type, options);
  }
  Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket) override {
    return inner_.all_gather(device(in), device(out), count, type, bucket);
  }
  Work reduce_parts(void* data, std::size_t count, DataType type, const ReduceOptions& options) override {
    return inner_.reduce_parts(device(data), count, type, options);
  }
  Work gather_parts(void* data, std::size_t count, DataType type, int bucket) override {
    return inner_.gather_parts(device(data), count, type, bucket);
  }
  Work broadcast(void* data, std::size_t count, DataType type, int root) override {
    return inner_.broadcast(device(data), count, type, root);
  }
  Work barrier() override { return inner_.barrier(); }
  void begin_group() override { inner_.begin_group(); }
  void end_group() override { inner_.end_group(); }
  void progress() override { inner_.progress(); }
  void abort(const std::string& cause) override { inner_.abort(cause); }

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

  void* device(const void* data) const {
    auto* const address = static_cast<std::byte*>(const_cast<void*>(data));
    auto view = views_.upper_bound(address);
    if (view == views_.begin()) return address;
    --view;
    const auto& [begin, on_device] = *view;
    return address <= begin + on_device.size() ? on_device.data() + (address - begin) : address;
  }

  comm::Communicator& inner_;
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
    for (const auto& one :
         conformance_cases({.rank_order = false, .wide_sums = false, .exact_scaling = false, .nan_wins = false})) {
      SCOPED_TRACE(one.name + " on " + std::to_string(world.size) + " ranks");
      one.run(view);
    }
    EXPECT_GT(rank.gpus.take_counts().nccl_operations, 1000);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclConformance, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace dtrain::test
