// What the host hands over without waiting, and what it reads late: steps in flight, batches, metrics.
#include <cstring>

#include "checkpoint/state_image.h"
#include "device/device_feed.h"
#include "device/steps_in_flight.h"
#include "dtrain/base/error.h"
#include "exchange/exchange_events.h"
#include "gpu_run.h"
#include "loop/metrics.h"

namespace dtrain::train {
namespace {

using test::gpus;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using GpuFlight = test::OnGpus;

StepsInFlight::Use append_to(std::vector<double>& seen) {
  return [&seen](std::span<const double> values) { seen.insert(seen.end(), values.begin(), values.end()); };
}

at::Tensor number_on_gpu(double value) {
  return at::full({}, value, at::TensorOptions(test::kGpu).dtype(at::kFloat));
}

TEST_F(GpuFlight, ValuesAreReadLateAndInOrder) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    ASSERT_EQ(flight.lag(), 2);
    std::vector<double> seen;
    gpus.delay_queries(3);
    gpus.take_counts();
    for (int batch = 1; batch <= 6; ++batch) {
      flight.read(number_on_gpu(batch), append_to(seen));
      flight.read(number_on_gpu(-batch), append_to(seen));
      flight.end_batch();
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * std::max(0, batch - 2))) << "after batch " << batch;
    }
    flight.finish_oldest();
    EXPECT_THAT(seen, ElementsAre(1, -1, 2, -2, 3, -3, 4, -4, 5, -5));
    flight.finish_all();
    EXPECT_THAT(seen, ElementsAre(1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6));
    flight.finish_oldest();  // there is none
    const test::FakeGpuCounts counts = gpus.take_counts();
    EXPECT_EQ(counts.host_syncs, 0);
    EXPECT_EQ(counts.pageable_copies, 0);
    EXPECT_EQ(counts.copies_to_host, 12);
  });
}

TEST_F(GpuFlight, TimesOfAnExchangeArriveWhenItsBatchHasEnded) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    gpus.delay_queries(3);
    gpus.take_counts();
    ExchangeEvents marks(run.device, /*of_gradients=*/true);
    marks.begin_backward();
    number_on_gpu(1);
    marks.gradient_ready(1);
    {
      const ExchangeEvents::Stretch outer(&marks);
      const ExchangeEvents::Stretch inner(&marks);
      number_on_gpu(2);
    }
    number_on_gpu(3);
    marks.gradient_ready(0);
    {
      const ExchangeEvents::Stretch last(&marks);
      number_on_gpu(4);
    }
    std::vector<ExchangeEvents::Times> arrived;
    flight.when_ended([&] { arrived.push_back(marks.read(3)); });
    flight.end_batch();
    EXPECT_EQ(arrived.size(), 0u);
    flight.finish_all();
    ASSERT_EQ(arrived.size(), 1u);
    const ExchangeEvents::Times& times = arrived.front();
    ASSERT_EQ(times.ready_us.size(), 3u);
    EXPECT_GT(times.ready_us[1], 0);
    EXPECT_GT(times.ready_us[0], times.ready_us[1]);
    EXPECT_EQ(times.ready_us[2], -1) << "it is not in this step";
    EXPECT_GT(times.exchange.exposed_us, 0);
    EXPECT_GE(times.exchange.exchanged_us, times.ready_us[0] + times.exchange.exposed_us - 1e-3);
    EXPECT_EQ(gpus.take_counts().host_syncs, 0);
  });
}

TEST_F(GpuFlight, WhatIsToBeDoneAfterABatchIsDoneAtOnceOnTheHost) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(at::kCPU, *run.host, run.recorder);
    int calls = 0;
    flight.when_ended([&] { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST_F(GpuFlight, CopiesForACheckpointAreWaitedForByNobody) {
  run_on_gpu([](GpuRun& run) {
    DeviceCopies copies;
    for (int round = 0; round < 3; ++round) {
      const at::TensorOptions there(run.device);
      std::vector<at::Tensor> values = {
          at::arange(7, there.dtype(at::kFloat)) + round, at::ones({3}, there.dtype(at::kBool)),
          at::full({2, 3}, 5.5 + round, there.dtype(at::kDouble)), at::zeros({}, there.dtype(at::kLong)) + round};
      if (round == 1) values.push_back(at::arange(1000, there.dtype(at::kInt)));  // more memory than before
      std::vector<at::Tensor> wanted;
      for (const at::Tensor& value : values) wanted.push_back(value.cpu());
      std::vector<std::vector<std::byte>> arrived;
      arrived.reserve(values.size());
      gpus.delay_queries(3);
      gpus.take_counts();
      for (const at::Tensor& value : values) {
        arrived.emplace_back(value.nbytes());
        copies.add(value, arrived.back().data());
      }
      copies.hand_over();
      EXPECT_EQ(copies.seconds(), 0);
      for (at::Tensor& value : values) value.zero_();  // the next update
      EXPECT_FALSE(copies.complete());
      while (!copies.complete()) {
      }
      EXPECT_GT(copies.seconds(), 0);
      const test::FakeGpuCounts counts = gpus.take_counts();
      EXPECT_EQ(counts.host_syncs, 0);
      EXPECT_EQ(counts.pageable_copies, 0);
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(std::memcmp(arrived[i].data(), wanted[i].const_data_ptr(), arrived[i].size()), 0) << "value " << i;
      }
    }
  });
}

TEST_F(GpuFlight, WhatIsAskedForAfterABatchBelongsToItOnceItIsExtended) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    std::vector<double> seen;
    gpus.delay_queries(3);
    flight.read(number_on_gpu(1), append_to(seen));
    flight.extend_batch();  // no batch is in flight: it becomes one
    flight.read(number_on_gpu(2), append_to(seen));
    flight.finish_all();
    EXPECT_THAT(seen, ElementsAre(1));
    flight.end_batch();
    flight.read(number_on_gpu(3), append_to(seen));
    flight.extend_batch();
    flight.finish_all();
    EXPECT_THAT(seen, ElementsAre(1, 2, 3));
  });
}

TEST_F(GpuFlight, OnTheHostValuesAreReadAtOnce) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(at::kCPU, *run.host, run.recorder);
    std::vector<double> seen;
    flight.read(at::arange(3, at::kInt), append_to(seen));
    EXPECT_THAT(seen, ElementsAre(0, 1, 2));
    EXPECT_EQ(flight.lag(), 0);
  });
}

TEST_F(GpuFlight, ADeviceThatIsLostEndsTheWaitAndTheDestructorKeepsQuiet) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    std::vector<double> seen;
    flight.read(number_on_gpu(1), append_to(seen));
    flight.end_batch();
    gpus.lose_device(1);
    EXPECT_NO_THROW(number_on_gpu(2));  // its last operation
    EXPECT_THROW(flight.finish_all(), c10::AcceleratorError);
    EXPECT_THAT(seen, IsEmpty());
    gpus.heal();
  });
}

TEST_F(GpuFlight, AFailureOfAPeerEndsTheWait) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    gpus.delay_queries(1'000'000'000);
    number_on_gpu(1);
    flight.end_batch();
    run.nccl->abort("rank 7 has left");
    try {
      flight.finish_all();
      ADD_FAILURE() << "it has ended";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 7 has left"));
    }
    gpus.heal();
  });
}

// To stop a communicator ends its kernels, so the event of a step whose results are wrong has fired.
TEST_F(GpuFlight, ValuesOfAStepThatWasStoppedAreNotRead) {
  run_on_gpu([](GpuRun& run) {
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    std::vector<double> seen;
    flight.read(number_on_gpu(1), append_to(seen));
    flight.end_batch();
    run.nccl->abort("rank 7 has left");
    EXPECT_THROW(flight.finish_all(), CommError);
    EXPECT_THAT(seen, IsEmpty());
    gpus.heal();
  });
}

Batch batch_of(const at::Tensor& first, const at::Tensor& second) {
  return {{"first", "second"}, {first, second}, first.size(0)};
}

TEST_F(GpuFlight, BatchesComeFromAnyMemoryAndTheHostDoesNotWait) {
  run_on_gpu([](GpuRun& run) {
    DeviceFeed feed(run.device);
    const auto pageable = at::rand({4, 3}).t();  // not contiguous
    const auto pinned = at::arange(4).pin_memory();
    const auto there = at::ones({2}, test::kGpu);
    gpus.take_counts();
    Batch batch = batch_of(pageable, pinned);
    batch.names.emplace_back("third");
    batch.tensors.push_back(there);
    feed.move(batch);
    const test::FakeGpuCounts counts = gpus.take_counts();
    EXPECT_EQ(counts.copies_to_device, 2);
    EXPECT_EQ(counts.pageable_copies, 0);
    EXPECT_EQ(counts.host_syncs, 0);
    EXPECT_TRUE(batch.tensors[2].is_same(there));
    EXPECT_TRUE(at::equal(batch.tensors[0].cpu(), pageable));
    EXPECT_TRUE(at::equal(batch.tensors[1].cpu(), pinned));
  });
}

TEST_F(GpuFlight, MemoryOfABatchIsUsedAgainWhenItsStepHasEnded) {
  run_on_gpu([](GpuRun& run) {
    DeviceFeed feed(run.device);
    gpus.delay_queries(3);
    at::Tensor sum = at::zeros({}, test::kGpu);
    for (int i = 0; i < 20; ++i) {
      Batch batch = batch_of(at::full({100}, i), at::full({50}, i));
      feed.move(batch);
      sum += batch["first"].sum() + batch["second"].sum();
    }
    EXPECT_EQ(sum.item<double>(), 150.0 * 190);
  });
}

TEST_F(GpuFlight, OnTheHostBatchesStayWhereTheyAre) {
  DeviceFeed feed(at::kCPU);
  Batch batch = batch_of(at::ones({2}), at::ones({2}));
  const at::Tensor before = batch.tensors[0];
  feed.move(batch);
  EXPECT_TRUE(batch.tensors[0].is_same(before));
}

TEST_F(GpuFlight, MetricsAreSummedOnTheDevice) {
  run_on_gpu([](GpuRun& run) {
    MetricReducer metrics("training", run.control, *run.host);
    StepsInFlight flight(run.device, *run.nccl, run.recorder);
    gpus.delay_queries(3);
    gpus.take_counts();
    metrics.add(
        {{"loss", number_on_gpu(1)}, {"host", 10.0}, {"wide", number_on_gpu(3).to(at::kDouble).reshape({1, 1})}}, 3);
    metrics.add({{"loss", number_on_gpu(2)}, {"host", 20.0}, {"wide", number_on_gpu(5).to(at::kDouble)}}, 1);
    MetricReducer::Sums sums = metrics.take();
    EXPECT_EQ(sums.samples, 4);
    flight.read(sums.device_sums, [&](std::span<const double> values) { sums.add_device_sums(values); });
    EXPECT_EQ(gpus.take_counts().host_syncs, 0);
    metrics.add({{"loss", number_on_gpu(100)}}, 1);  // of the next period
    flight.end_batch();
    EXPECT_TRUE(sums.device_sums.defined()) << "they have arrived too early";
    flight.finish_all();
    EXPECT_FALSE(sums.device_sums.defined());
    for (const ReducedMetrics& reduced : {MetricReducer::local_means(sums), metrics.reduce(sums)}) {
      EXPECT_EQ(reduced.samples, 4);
      EXPECT_EQ(reduced.means, (std::map<std::string, double>{{"host", 12.5}, {"loss", 1.25}, {"wide", 3.5}}));
    }
    const ReducedMetrics next = metrics.reduce();  // waits for the device
    EXPECT_EQ(next.means, (std::map<std::string, double>{{"loss", 100}}));
    EXPECT_FALSE(metrics.take().device_sums.defined());
  });
}

}  // namespace
}  // namespace dtrain::train
