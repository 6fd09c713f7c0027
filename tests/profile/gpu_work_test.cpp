#include "dtrain/profile/gpu_work.h"

#include <gmock/gmock.h>

#include "dtrain/base/error.h"

namespace dtrain::profile {
namespace {

TEST(WorkKind, FollowsTheNameOfTheWork) {
  const std::pair<const char*, WorkKind> cases[] = {
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", WorkKind::kProducts},
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNN", WorkKind::kProducts},
      {"sm80_xmma_wgrad_implicit_gemm", WorkKind::kProducts},
      {"void flash_fwd_kernel<Flash_fwd_kernel_traits>", WorkKind::kProducts},
      {"void at::native::vectorized_elementwise_kernel<4>", WorkKind::kMemoryBound},
      {"void at::native::reduce_kernel<512, 1>", WorkKind::kMemoryBound},
      {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", WorkKind::kExchange},
      {"Memcpy HtoD (Pinned -> Device)", WorkKind::kCopies},
      {"Memset (Device)", WorkKind::kCopies}};
  for (const auto& [name, kind] : cases) EXPECT_EQ(name_of(kind_of_work(name)), name_of(kind)) << name;
}

TEST(GpuWindowCounter, EachMomentCountsForOneKind) {
  GpuWindowCounter counter;
  counter.add_work("gemm", 0, 100, 1);
  counter.add_work("ncclDevKernel_AllReduce", 50, 180, 2);
  counter.add_work("elementwise", 120, 150, 3);
  counter.add_work("Memcpy DtoH", 190, 200, 4);
  GpuWindow window;
  counter.count(1, window);
  EXPECT_NEAR(window.work_of(WorkKind::kExchange), 130e-6, 1e-12);
  EXPECT_NEAR(window.own_of(WorkKind::kProducts), 100e-6, 1e-12);
  EXPECT_NEAR(window.own_of(WorkKind::kMemoryBound), 30e-6, 1e-12);
  EXPECT_NEAR(window.own_of(WorkKind::kExchange), 50e-6, 1e-12) << "while no other kernel ran";
  EXPECT_NEAR(window.own_of(WorkKind::kCopies), 10e-6, 1e-12);
  EXPECT_NEAR(window.busy_s, 190e-6, 1e-12);
  EXPECT_NEAR(window.idle_s, 10e-6, 1e-12);
}

TEST(GpuWindowCounter, OnlyTheFirstKernelOfAGraphWaitsForItsLaunch) {
  GpuWindowCounter counter;
  counter.add_call("cudaLaunchKernel", 4, 1);
  counter.add_work("elementwise", 5, 10, 1);
  counter.add_call("cudaGraphLaunch", 30, 2);  // ends while the graph runs
  counter.add_work("gemm", 20, 24, 2);
  counter.add_work("gemm", 25, 35, 2);
  counter.add_work("gemm", 36, 40, 2);
  GpuWindow window;
  counter.count(1, window);
  EXPECT_EQ(window.works, 4);
  EXPECT_EQ(window.graphs, 1);
  EXPECT_EQ(window.late_launches, 1);
  EXPECT_NEAR(window.launch_gaps_s, 10e-6, 1e-12);
  EXPECT_NEAR(window.idle_s, 12e-6, 1e-12);
  EXPECT_FALSE(counter.lacks_work_of_graphs());
  counter.add_call("cudaGraphLaunch", 60, 3);
  counter.count(1, window);
  EXPECT_TRUE(counter.lacks_work_of_graphs());
}

TEST(KernelTimes, KeepEveryFigureInTheirFile) {
  KernelTimes times{.rank = 3, .host = "alpha", .first_batch = 500, .last_batch = 1500, .cost_s = 0.25, .window = {}};
  GpuWindowCounter counter;
  counter.add_call("cudaGraphLaunch", 3, 7);
  counter.add_work("gemm", 5, 10, 7);
  counter.add_work("Memcpy DtoH", 20, 30, 0);
  counter.count(1, times.window);
  times.window.add(times.window);
  const KernelTimes read = kernel_times_of(Json::parse(to_line(to_json(times))));
  EXPECT_EQ(to_json(read), to_json(times));
  EXPECT_EQ(read.window.batches, 2);
  EXPECT_EQ(kernel_times_file_name(3), "kernels-rank-0003.json");
}

TEST(KernelTimes, OfADamagedFileAreNothing) {
  EXPECT_THROW(kernel_times_of(Json::parse(R"({"schema": 2})")), DataError);
  const KernelTimes read =
      kernel_times_of(Json::parse(R"({"schema": 1, "rank": -4, "batches": "x", "busy_s": -1, "own_s": [3]})"));
  EXPECT_EQ(to_json(read), to_json(KernelTimes()));
}

}  // namespace
}  // namespace dtrain::profile
