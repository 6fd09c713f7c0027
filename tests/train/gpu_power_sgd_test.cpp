// PowerSGD where the ranks are processes with a GPU each: the same bits on all of them, and no wait of the host.
#include <algorithm>
#include <string>

#include "device/training_device.h"
#include "gpu_ranks.h"
#include "matrices.h"
#include "model/flat_parameters.h"
#include "model/model_tensors.h"
#include "small_model.h"

namespace dtrain::train {
namespace {

using test::expect_gpu_ranks;
using test::GpuRank;

constexpr int kGpuSteps = 6;

void exchange_on_gpus(const GpuRank& rank, int ranks) {
  at::set_num_threads(1);
  const c10::Device gpu(at::kCUDA, 0);
  const auto nccl =
      rank.connect(test::TestWorld(ranks), {.current_stream = [&] { return native_handle(current_stream(gpu)); }});
  Matrices model;
  move_model(*model, gpu);
  FlatParameters parameters(*model, *nccl);
  const auto plan = comm::plan_fusion(items_of(parameters), 5000);
  Side side(false, parameters, *nccl, power_sgd_options());
  for (int step = 0; step < kGpuSteps; ++step) {
    fill_random(side, parameters, nccl->rank(), step);
    rank.gpus.take_counts();
    exchange_all(side, plan, 1.0 / ranks);
    const test::FakeGpuCounts counts = rank.gpus.take_counts();
    EXPECT_EQ(counts.host_syncs, 0) << "in step " << step;
    EXPECT_EQ(counts.scalar_reads, 0) << "in step " << step;
    EXPECT_EQ(counts.pageable_copies, 0) << "in step " << step;
    const auto of_ranks = rank.control.gather("step/" + std::to_string(step), bits_of(side));
    EXPECT_EQ(std::count(of_ranks.begin(), of_ranks.end(), of_ranks.front()), ranks) << "in step " << step;
  }
  for (const auto& [name, value] : side.state()) EXPECT_GT(value.norm().item<double>(), 0) << name;
}

TEST(GpuPowerSgd, AllRanksHaveTheSameBitsAndNoneWaits) {
  for (const int ranks : {2, 3}) {
    expect_gpu_ranks(ranks, [&](const GpuRank& rank) { exchange_on_gpus(rank, ranks); });
  }
}

}  // namespace
}  // namespace dtrain::train
