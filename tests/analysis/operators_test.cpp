#include "dtrain/analysis/operators.h"

#include <gmock/gmock.h>

#include <numeric>

#include "trace_fixture.h"

namespace dtrain::analysis {
namespace {

using testing::HasSubstr;

TEST(OperatorKind, FollowsTheName) {
  using enum OperatorKind;
  const std::vector<std::pair<const char*, OperatorKind>> cases = {
      {"aten::addmm", kContraction},
      {"AddmmBackward0", kContraction},
      {"aten::mkldnn_convolution", kContraction},
      {"aten::convolution_backward", kContraction},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", kContraction},
      {"void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm>", kContraction},
      {"aten::_log_softmax_backward_data", kNormalisation},
      {"LogSoftmaxBackward0", kNormalisation},
      {"aten::native_batch_norm", kNormalisation},
      {"aten::nll_loss_forward", kNormalisation},
      {"aten::sum", kNormalisation},
      {"void at::native::reduce_kernel<512, 1>", kNormalisation},
      {"aten::relu_", kElementWise},
      {"aten::threshold_backward", kElementWise},
      {"aten::_fused_adamw_", kElementWise},
      {"aten::add_", kElementWise},
      {"void at::native::vectorized_elementwise_kernel<4>", kElementWise},
      {"aten::copy_", kOther},
      {"aten::max_pool2d_with_indices", kOther},
      {"aten::embedding", kOther},
      {"aten::empty_strided", kOther},
      {"autograd::engine::evaluate_function: AddmmBackward0", kOther},
      {"Memcpy HtoD (Pinned -> Device)", kOther},
      {"torch::autograd::AccumulateGrad", kOther}};
  for (const auto& [name, kind] : cases) EXPECT_EQ(name_of(kind_of_operator(name)), name_of(kind)) << name;
}

const OperatorRow& row(const DeviceOperators& device, const std::string& name) {
  for (const OperatorRow& one : device.rows) {
    if (one.name == name) return one;
  }
  throw std::runtime_error("no row " + name);
}

TEST(Operators, AreChargedWhatTheyDidThemselves) {
  const RunFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    profile::TraceLog log;
    // 40 us of communication inside of AccumulateGrad, 20 us outside of all operators.
    log.on_phase(profile::Phase::kAllreduceWait, 140'000, 180'000);
    log.on_phase(profile::Phase::kAllreduceWait, 300'000, 320'000);
    write_trace(folder, rank, 0, log,
                {op("ProfilerStep#5", 0, 400, "user_annotation"), op("aten::linear", 0, 100), op("aten::addmm", 10, 60),
                 op("aten::copy_", 20, 10), op("aten::relu", 100, 20), op("torch::autograd::AccumulateGrad", 130, 60),
                 op("aten::add_", 181, 4)});
  }
  const Operators all = operators_of_run(folder.path());
  EXPECT_EQ(all.ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(all.batches, 4);
  EXPECT_TRUE(all.notes.empty());
  EXPECT_TRUE(all.gpu.rows.empty());
  EXPECT_EQ(row(all.cpu, "aten::linear").calls, 2);
  EXPECT_NEAR(row(all.cpu, "aten::linear").self_s, 2 * 40e-6, 1e-9);
  EXPECT_NEAR(row(all.cpu, "aten::linear").total_s, 2 * 100e-6, 1e-9);
  EXPECT_NEAR(row(all.cpu, "aten::addmm").self_s, 2 * 50e-6, 1e-9);
  EXPECT_NEAR(row(all.cpu, "torch::autograd::AccumulateGrad").self_s, 2 * 16e-6, 1e-9) << "60 - 40 - 4";
  EXPECT_NEAR(all.cpu.seconds, 2 * (100 + 20 + 20) * 1e-6, 1e-9);
  EXPECT_EQ(all.cpu.rows.front().name, "aten::addmm");
  const double shares = std::accumulate(all.cpu.rows.begin(), all.cpu.rows.end(), 0.0,
                                        [](double sum, const OperatorRow& one) { return sum + one.share; });
  EXPECT_NEAR(shares, 1, 1e-9);
  ASSERT_EQ(all.cpu.kinds.size(), 4u);
  EXPECT_EQ(all.cpu.kinds[0].kind, OperatorKind::kContraction);
  EXPECT_NEAR(all.cpu.kinds[0].seconds, 2 * 90e-6, 1e-9);
  EXPECT_EQ(to_json(all)["cpu"]["classes"][0]["class"], "contraction");
}

TEST(Operators, OfKernelsAreTheGpusAndWhatCannotBeReadIsANote) {
  const RunFolder folder;
  write_trace(folder, 0, 0, {}, {op("sgemm", 0, 10, "kernel"), op("Memcpy HtoD", 10, 30, "gpu_memcpy")},
              "the training ended");
  write_file_atomic(folder.path() / "profile" / "trace-rank-0001.json.gz", "no trace");
  const Operators all = operators_of_run(folder.path());
  EXPECT_TRUE(all.cpu.rows.empty());
  EXPECT_NEAR(all.gpu.seconds, 40e-6, 1e-9);
  EXPECT_NEAR(row(all.gpu, "sgemm").share, 0.25, 1e-9);
  ASSERT_EQ(all.notes.size(), 2u);
  EXPECT_THAT(all.notes[0], HasSubstr("the training ended"));
  EXPECT_THAT(all.notes[1], HasSubstr("trace-rank-0001"));
  EXPECT_TRUE(operators_of_run(folder.path() / "none").cpu.rows.empty());
}

TEST(GpuWindow, KnowsWhyTheGpuWasIdle) {
  const RunFolder folder;
  write_trace(folder, 0, 0, profile::TraceLog(),
              {launch_of(1, 0, 4), kernel(10, 10, 1),      // until 20
               launch_of(2, 12, 14), kernel(30, 6, 2),     // launched at 26: the GPU waited for that
               launch_of(3, 27, 2), kernel(40, 10, 3),     // launched at 29, before the GPU was idle
               launch_of(4, 300, 5), kernel(310, 10, 4),   // the host did something else
               op("Memcpy HtoD", 322, 8, "gpu_memcpy")});  // nothing says when it was launched
  const GpuWindow window = operators_of_run(folder.path()).gpu_window;
  EXPECT_EQ(window.batches, 2);
  EXPECT_EQ(window.works, 5);
  EXPECT_NEAR(window.busy_s, 44e-6, 1e-12);
  EXPECT_NEAR(window.idle_s, 276e-6, 1e-12);
  EXPECT_EQ(window.late_launches, 1);
  EXPECT_NEAR(window.launch_gaps_s, 10e-6, 1e-12);
  EXPECT_NEAR(window.late_launch_s, 22e-6, 1e-12);
  EXPECT_NEAR(window.work_before_s, 10e-6, 1e-12);
  EXPECT_EQ(to_json(operators_of_run(folder.path()))["gpu_window"]["late_launches"], 1);
}

TEST(GpuWindow, WorkOnSeveralStreamsCountsOnce) {
  const RunFolder folder;
  write_trace(folder, 0, 0, profile::TraceLog(),
              {kernel(0, 100, 1), kernel(20, 10, 2), kernel(90, 30, 3), launch_of(2, 5, 200), launch_of(3, 5, 200)});
  const GpuWindow window = operators_of_run(folder.path()).gpu_window;
  EXPECT_NEAR(window.busy_s, 120e-6, 1e-12);
  EXPECT_EQ(window.idle_s, 0);
  EXPECT_EQ(window.late_launches, 0);
}

TEST(GpuWindow, IsNotThereWithoutTheWorkOfAGpu) {
  const RunFolder folder;
  write_trace(folder, 0, 0, profile::TraceLog(), {op("aten::addmm", 0, 100), launch_of(1, 3, 5)});
  const Operators operators = operators_of_run(folder.path());
  EXPECT_EQ(operators.gpu_window.batches, 0);
  EXPECT_EQ(to_json(operators)["gpu_window"], nullptr);
}

}  // namespace
}  // namespace dtrain::analysis
