// The loader: order, recycling, errors in place, and shutdown at awkward moments.
#include "dtrain/data/loader.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/eventually.h"
#include "dtrain/base/error.h"
#include "dtrain/data/epoch_order.h"

namespace dtrain::data {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);  // only against hanging

// Sample i is {int64 i; float i / 2}. Reads count, fail and wait as the test sets it.
class NumberDataset : public Dataset {
 public:
  explicit NumberDataset(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    ++reads;
    {
      std::unique_lock lock(mutex_);
      if (!opened_.wait_for(lock, kDeadline, [&] { return open_; })) throw std::logic_error("the gate stayed shut");
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] == broken) throw DataError("sample " + std::to_string(samples[i]) + " is broken");
      const float half = static_cast<float>(samples[i]) / 2;
      std::memcpy(outputs[0] + i * 8, &samples[i], 8);
      std::memcpy(outputs[1] + i * 4, &half, 4);
    }
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }

  mutable std::atomic<int> reads{0};
  std::int64_t broken = -1;

 private:
  std::int64_t size_;
  std::vector<Field> fields_{{"index", ElementType::kInt64, {}}, {"half", ElementType::kFloat32, {1}}};
  mutable std::mutex mutex_;
  mutable std::condition_variable opened_;
  bool open_ = true;
};

std::vector<std::int64_t> indices(const HostBatch& batch) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(batch.samples));
  std::memcpy(values.data(), batch.fields.at(0).get(), values.size() * 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float half = 0;
    std::memcpy(&half, batch.fields.at(1).get() + i * 4, 4);
    EXPECT_EQ(half, static_cast<float>(values[i]) / 2);
  }
  return values;
}

Sampler sampler_of(std::int64_t size, const SamplerOptions& options) {
  return {std::make_shared<BlockTable>(size, Blocks{}), options};
}

// The samples of a rank's batch number `batch` of an epoch.
std::vector<std::int64_t> expected_batch(const Sampler& sampler, std::int64_t epoch, std::int64_t batch) {
  const Sampler::Part part = sampler.part(batch * sampler.global_batch());
  return sampler.order(epoch).take(part.first, part.count);
}

struct Reading {
  int workers, prefetch;
};

class LoaderTest : public ::testing::TestWithParam<Reading> {
 protected:
  std::shared_ptr<NumberDataset> dataset_ = std::make_shared<NumberDataset>(103);
  LoaderOptions options_{.batch_size = 4,
                         .rank = 1,
                         .world_size = 2,
                         .seed = 11,
                         .workers = GetParam().workers,
                         .prefetch = GetParam().prefetch};
};

TEST_P(LoaderTest, GivesTheSamplersBatchesInOrder) {
  SampleLoader loader(dataset_, options_);
  const Sampler sampler = sampler_of(103, {.batch_size = 4, .rank = 1, .world_size = 2, .seed = 11});
  EXPECT_EQ(loader.batches_per_epoch(), sampler.batches_from(0));
  EXPECT_EQ(loader.samples_per_epoch(), 96);
  EXPECT_EQ(&loader.dataset(), dataset_.get());
  EXPECT_FALSE(loader.next());  // no epoch yet
  for (const std::int64_t epoch : {0, 1, 7, 7}) {
    loader.start_epoch(epoch);
    for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch);
      const auto expected = expected_batch(sampler, epoch, b);
      ASSERT_EQ(indices(*batch), expected);
    }
    EXPECT_FALSE(loader.next());
    EXPECT_FALSE(loader.next());
  }
}

TEST_P(LoaderTest, ValidationEndsWithAShortBatch) {
  options_ = {.batch_size = 8,
              .rank = 1,
              .world_size = 2,
              .shuffle = false,
              .drop_last = false,
              .workers = GetParam().workers,
              .prefetch = GetParam().prefetch};
  SampleLoader loader(dataset_, options_);
  loader.start_epoch(0);
  std::vector<std::int64_t> sizes, of_all;
  while (const auto batch = loader.next()) {
    sizes.push_back(batch->samples);
    of_all.push_back(batch->global_samples);
  }
  EXPECT_THAT(sizes, ::testing::ElementsAre(8, 8, 8, 8, 8, 8, 3));
  EXPECT_THAT(of_all, ::testing::ElementsAre(16, 16, 16, 16, 16, 16, 7));
  EXPECT_EQ(loader.samples_per_epoch(), 103);
}

TEST_P(LoaderTest, BuffersAreAlignedKeptAndRecycled) {
  SampleLoader loader(dataset_, options_);
  std::set<const std::byte*> addresses;
  std::vector<HostBatch> kept;
  std::vector<std::vector<std::int64_t>> contents;
  for (int epoch = 0; epoch < 20; ++epoch) {
    loader.start_epoch(epoch);
    while (auto batch = loader.next()) {
      for (const auto& field : batch->fields) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(field.get()) % 64, 0u);
        addresses.insert(field.get());
      }
      if (kept.size() < 3) {
        contents.push_back(indices(*batch));
        kept.push_back(std::move(*batch));
      }
    }
  }
  // 240 batches of two fields, yet only as many buffers as were in use together.
  EXPECT_LE(addresses.size(), 2u * static_cast<std::size_t>(3 + GetParam().prefetch + 3));
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(indices(kept[i]), contents[i]);
}

TEST_P(LoaderTest, BatchesOutliveTheLoader) {
  HostBatch batch;
  std::vector<std::int64_t> content;
  {
    SampleLoader loader(dataset_, options_);
    loader.start_epoch(0);
    batch = *loader.next();
    content = indices(batch);
  }
  EXPECT_EQ(indices(batch), content);
  std::thread([moved = std::move(batch)]() mutable { moved = {}; }).join();  // let go on another thread
}

TEST_P(LoaderTest, AnErrorComesInItsPlaceAndTheEpochGoesOn) {
  const Sampler sampler = sampler_of(103, {.batch_size = 4, .rank = 1, .world_size = 2, .seed = 11});
  dataset_->broken = expected_batch(sampler, 0, 5)[2];
  SampleLoader loader(dataset_, options_);
  loader.start_epoch(0);
  for (std::int64_t b = 0; b < loader.batches_per_epoch(); ++b) {
    if (b == 5) {
      try {
        loader.next();
        FAIL();
      } catch (const DataError& error) {
        EXPECT_EQ(error.what(), "sample " + std::to_string(dataset_->broken) + " is broken");
      }
      continue;
    }
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    const auto expected = expected_batch(sampler, 0, b);
    EXPECT_EQ(indices(*batch), expected);
  }
  EXPECT_FALSE(loader.next());
}

TEST_P(LoaderTest, ANewEpochDropsTheRestOfTheOld) {
  SampleLoader loader(dataset_, options_);
  const Sampler sampler = sampler_of(103, {.batch_size = 4, .rank = 1, .world_size = 2, .seed = 11});
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    loader.start_epoch(epoch);
    for (std::int64_t b = 0; b < epoch % 4; ++b) {
      const auto expected = expected_batch(sampler, epoch, b);
      ASSERT_EQ(indices(*loader.next()), expected);
    }
  }
}

// Then its threads are gone, nothing holds or reads the data set any more, and what it has handed out stays as it was.
TEST_P(LoaderTest, EndsCleanlyAtAnyMoment) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto threads_before = threads();
  for (int taken = 0; taken < 40; ++taken) {
    std::vector<HostBatch> batches;
    std::vector<std::vector<std::int64_t>> contents;
    {
      SampleLoader loader(dataset_, options_);
      if (taken % 5 != 0) loader.start_epoch(taken);
      for (int b = 0; b < taken % 14; ++b) {
        auto batch = loader.next();
        ASSERT_EQ(batch.has_value(), taken % 5 != 0 && b < loader.batches_per_epoch()) << taken << ", batch " << b;
        if (!batch) continue;
        contents.push_back(indices(*batch));
        batches.push_back(std::move(*batch));
      }
    }
    const int reads = dataset_->reads;
    EXPECT_EQ(dataset_.use_count(), 1) << taken;
    EXPECT_TRUE(eventually([&] { return threads() == threads_before; })) << taken;
    EXPECT_EQ(dataset_->reads, reads) << taken;
    for (std::size_t i = 0; i < batches.size(); ++i) EXPECT_EQ(indices(batches[i]), contents[i]) << taken;
  }
}

TEST_P(LoaderTest, EndsOnceAReadThatGoesOnHasEnded) {
  if (GetParam().workers == 0 || GetParam().prefetch == 0) GTEST_SKIP() << "nothing is read unless asked for";
  auto loader = std::make_unique<SampleLoader>(dataset_, options_);
  dataset_->shut();
  loader->start_epoch(0);
  ASSERT_TRUE(eventually([&] { return dataset_->reads > 0; }));
  auto ended = std::async(std::launch::async, [&] { loader.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout) << "it still writes there";
  dataset_->open();
  EXPECT_EQ(ended.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(dataset_.use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Reading, LoaderTest,
                         ::testing::Values(Reading{0, 0}, Reading{0, 2}, Reading{1, 0}, Reading{1, 1}, Reading{1, 2},
                                           Reading{3, 0}, Reading{3, 2}, Reading{3, 7},
                                           Reading{LoaderOptions::kAuto, 2}),
                         [](const auto& info) {
                           const int workers = info.param.workers;
                           return (workers < 0 ? "auto" : std::to_string(workers)) + "_workers_prefetch_" +
                                  std::to_string(info.param.prefetch);
                         });

TEST(Loader, PrefetchFillsTheQueueAndNoMore) {
  const auto dataset = std::make_shared<NumberDataset>(100);
  SampleLoader loader(dataset, {.batch_size = 1, .prefetch = 3});
  EXPECT_EQ(loader.workers(), 1);
  EXPECT_EQ(loader.queue_depth(), 0);
  EXPECT_EQ(dataset->reads, 0);  // nothing before an epoch is started
  loader.start_epoch(0);
  ASSERT_TRUE(eventually([&] { return loader.queue_depth() == 3; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to overrun, were there no bound
  EXPECT_EQ(dataset->reads, 3);
  loader.next();
  ASSERT_TRUE(eventually([&] { return loader.queue_depth() == 3; }));
  EXPECT_EQ(dataset->reads, 4);
}

TEST(Loader, WithoutWorkersReadsWhenAsked) {
  const auto dataset = std::make_shared<NumberDataset>(100);
  SampleLoader loader(dataset, {.batch_size = 1, .workers = 0});
  EXPECT_EQ(loader.workers(), 0);
  loader.start_epoch(0);
  EXPECT_EQ(dataset->reads, 0);
  loader.next();
  EXPECT_EQ(dataset->reads, 1);
  EXPECT_EQ(loader.queue_depth(), 0);
}

TEST(Loader, ABatchBeingReadForAnAbandonedEpochIsNotHandedOut) {
  const auto dataset = std::make_shared<NumberDataset>(100);
  SampleLoader loader(dataset, {.batch_size = 10, .seed = 1, .prefetch = 2});
  dataset->shut();
  loader.start_epoch(0);
  ASSERT_TRUE(eventually([&] { return dataset->reads == 1; }));  // reading epoch 0, and held there
  loader.start_epoch(1);
  dataset->open();
  const Sampler sampler = sampler_of(100, {.batch_size = 10, .seed = 1});
  const auto expected = expected_batch(sampler, 1, 0);
  EXPECT_EQ(indices(*loader.next()), expected);
}

TEST(Loader, DestructionWaitsForTheBatchBeingRead) {
  const auto dataset = std::make_shared<NumberDataset>(100);
  auto loader = std::make_unique<SampleLoader>(dataset, LoaderOptions{.batch_size = 10, .prefetch = 2});
  dataset->shut();
  loader->start_epoch(0);
  ASSERT_TRUE(eventually([&] { return dataset->reads == 1; }));
  auto destroyed = std::async(std::launch::async, [&] { loader.reset(); });
  dataset->open();
  ASSERT_EQ(destroyed.wait_for(kDeadline), std::future_status::ready);
  EXPECT_LE(dataset->reads, 3);  // it did not read the epoch to its end
}

TEST(Loader, OptionsThatMakeNoSense) {
  const auto dataset = std::make_shared<NumberDataset>(10);
  EXPECT_THROW(SampleLoader(dataset, {.prefetch = -1}), DataError);
  EXPECT_THROW(SampleLoader(dataset, {.batch_size = 0}), DataError);
  EXPECT_THROW(SampleLoader(dataset, {.batch_size = 11}), DataError);
}

}  // namespace
}  // namespace dtrain::data
