// dtrain::checkpoint() on a GPU, where backward runs on a thread of autograd.
#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "checkpointed_model.h"
#include "gpus.h"
#include "model/gradient_checkpointing.h"

namespace dtrain::train {
namespace {

using test::gpus;
using test::kGpu;

using GpuCheckpointing = test::OnGpus;

c10::DeviceAllocator& allocator() {
  return dynamic_cast<c10::DeviceAllocator&>(*c10::GetAllocator(at::kCUDA));
}

struct Step {
  std::vector<at::Tensor> results;
  std::int64_t most_bytes = 0;  // on the GPU at once, beyond what was there before
  std::int64_t host_syncs = 0;
};

Step one_step(const CheckpointedModelImpl::Options& options, bool checkpointed, bool autocast) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  torch::manual_seed(5);
  CheckpointedModel model(options);
  model->to(kGpu);
  watch_buffers_of(model.ptr());
  const at::Tensor x = torch::randn({64, options.width}, kGpu);
  torch::manual_seed(9);
  Step step;
  allocator().resetPeakStats(kGpu.index());
  const auto before = allocator().getDeviceStats(kGpu.index()).allocated_bytes[kAll].current;
  gpus.take_counts();
  if (autocast) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  }
  const at::Tensor loss = model->loss(x, checkpointed);
  if (autocast) {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
  loss.backward();
  step.host_syncs = gpus.take_counts().host_syncs;
  step.most_bytes = allocator().getDeviceStats(kGpu.index()).allocated_bytes[kAll].peak - before;
  for (const at::Tensor& result : results_of(model, loss)) step.results.push_back(result.cpu());
  step.results.push_back(torch::rand({3}, kGpu).cpu());
  step.results.push_back(torch::rand({3}));
  return step;
}

TEST_F(GpuCheckpointing, GivesTheSameBitsWithoutAWaitOfTheHost) {
  for (const double dropout : {0.0, 0.4}) {
    for (const bool autocast : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dropout " << dropout << (autocast ? ", autocast" : ""));
      const CheckpointedModelImpl::Options options{.dropout = dropout};
      const Step got = one_step(options, true, autocast);
      const Step expected = one_step(options, false, autocast);
      EXPECT_EQ(got.host_syncs, 0);
      ASSERT_EQ(got.results.size(), expected.results.size());
      for (std::size_t i = 0; i < got.results.size(); ++i) {
        EXPECT_TRUE(at::equal(got.results[i], expected.results[i])) << i;
      }
    }
  }
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

TEST_F(GpuCheckpointing, TakesTheMemoryOfOneBlockInsteadOfAll) {
  const CheckpointedModelImpl::Options options{.width = 32, .blocks = 12, .dropout = 0.1};
  const Step one = one_step(options, true, false);
  const Step all = one_step(options, false, false);
  EXPECT_LT(3 * one.most_bytes, 2 * all.most_bytes) << all.most_bytes << " bytes without, " << one.most_bytes;
  EXPECT_THAT(gpus.take_reports(), testing::IsEmpty());
}

}  // namespace
}  // namespace dtrain::train
