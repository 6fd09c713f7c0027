// Faults of data while it is read: each ends in an error that names sample, file and offset, or is counted; nothing
// hangs.
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/data/data_sets.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/sample.h"
#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sample i is the number i; those in `damaged` throw, in a file of their own.
class Damaged final : public Dataset {
 public:
  Damaged(std::int64_t size, std::set<std::int64_t> damaged) : size_(size), damaged_(std::move(damaged)) {}
  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::int64_t wanted = samples[i];
      if (once.compare_exchange_strong(wanted, -1)) throw DataError("the network is away");
      if (damaged_.contains(samples[i])) throw DataError("truncated picture", "copy it again");
      if (samples[i] == not_data) throw std::runtime_error("a user's mistake");
      std::memcpy(outputs[0] + i * 8, &samples[i], 8);
    }
  }
  std::string where(std::int64_t sample) const override {
    return "shard-0.tar, offset " + std::to_string(sample * 100);
  }
  mutable std::atomic<std::int64_t> once{-1};
  std::int64_t not_data = -1;

 private:
  std::int64_t size_;
  std::set<std::int64_t> damaged_;
  std::vector<Field> fields_{{"index", ElementType::kInt64, {}}};
};

std::vector<std::int64_t> numbers(const LoadedBatch& batch) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(batch.samples));
  std::memcpy(values.data(), batch.fields.at(0).get(), values.size() * 8);
  return values;
}

std::string error_of(SampleLoader& loader) {
  try {
    while (loader.next()) {
    }
  } catch (const DataError& error) {
    return std::string(error.what()) + "; " + error.remedy();
  }
  return "none";
}

class LoaderFaults : public FileTest, public ::testing::WithParamInterface<int> {  // workers
 protected:
  LoaderOptions options(std::int64_t batch = 4) const {
    return {.batch_size = batch, .shuffle = false, .drop_last = false, .workers = GetParam()};
  }
};

TEST_P(LoaderFaults, AnErrorNamesSampleFileAndOffset) {
  SampleLoader loader(std::make_shared<Damaged>(20, std::set<std::int64_t>{6, 7}), options());
  loader.start_epoch(0);
  EXPECT_EQ(error_of(loader), "sample 6 (shard-0.tar, offset 600): truncated picture; copy it again");
  EXPECT_THAT(numbers(*loader.next()), ElementsAre(8, 9, 10, 11));  // the epoch goes on
}

TEST_P(LoaderFaults, AUsersExceptionIsNamedToo) {
  const auto data = std::make_shared<Damaged>(20, std::set<std::int64_t>{});
  data->not_data = 13;
  LoaderOptions skipping = options();
  skipping.skip_damaged = true;  // what is no DataError is no damage
  SampleLoader loader(data, skipping);
  loader.start_epoch(0);
  EXPECT_EQ(error_of(loader), "sample 13 (shard-0.tar, offset 1300): a user's mistake; ");
}

TEST_P(LoaderFaults, AReadThatFailsOnceIsAnError) {
  const auto data = std::make_shared<Damaged>(8, std::set<std::int64_t>{});
  data->once = 5;
  SampleLoader loader(data, options());
  loader.start_epoch(0);
  EXPECT_THAT(error_of(loader), AllOf(HasSubstr("could be read when tried again"), HasSubstr("the network is away")));
}

TEST_P(LoaderFaults, SkippingReplacesDamagedSamplesByTheirNeighbours) {
  LoaderOptions skipping = options();
  skipping.skip_damaged = true;
  SampleLoader loader(std::make_shared<Damaged>(10, std::set<std::int64_t>{2, 5, 6, 9}), skipping);
  loader.start_epoch(0);
  const auto first = *loader.next(), second = *loader.next(), third = *loader.next();
  EXPECT_THAT(numbers(first), ElementsAre(0, 1, 3, 3));
  EXPECT_THAT(numbers(second), ElementsAre(4, 7, 7, 7));
  EXPECT_THAT(numbers(third), ElementsAre(8, 0));
  ASSERT_EQ(second.skipped.size(), 2u);
  EXPECT_EQ(second.skipped[0].sample, 5);
  EXPECT_EQ(second.skipped[1].place, 2);
  EXPECT_EQ(second.skipped[1].damage, "sample 6 (shard-0.tar, offset 600): truncated picture");
  EXPECT_EQ(third.skipped.size(), 1u);
  EXPECT_EQ(loader.state().skipped, 4);
}

// Ranks need not agree: each global batch has the same samples on any number of them.
TEST_P(LoaderFaults, SkippingGivesTheSameGlobalBatchesOnAnyRanks) {
  const auto data = std::make_shared<Damaged>(60, std::set<std::int64_t>{0, 3, 4, 5, 17, 31, 59});
  const auto global = [&](int world) {
    std::vector<std::vector<std::int64_t>> batches(5);
    for (int rank = 0; rank < world; ++rank) {
      LoaderOptions skipping{.batch_size = 12 / world, .rank = rank, .world_size = world, .workers = GetParam()};
      skipping.skip_damaged = true;
      SampleLoader loader(data, skipping);
      loader.start_epoch(3);
      for (auto& batch : batches) {
        const std::vector<std::int64_t> own = numbers(*loader.next());
        batch.insert(batch.end(), own.begin(), own.end());
      }
    }
    return batches;
  };
  EXPECT_EQ(global(1), global(2));
  EXPECT_EQ(global(1), global(4));
}

TEST_P(LoaderFaults, SkippingHasALimit) {
  const auto data = std::make_shared<Damaged>(40, std::set<std::int64_t>{1, 9, 10, 22, 30});
  LoaderOptions skipping = options();
  skipping.skip_damaged = true;
  skipping.max_skipped = 3;
  SampleLoader loader(data, skipping);
  loader.start_epoch(0);
  for (int batch = 0; batch < 5; ++batch) EXPECT_TRUE(loader.next());
  EXPECT_THAT(error_of(loader), AllOf(HasSubstr("4 damaged samples were left out in epoch 0 by rank 0, more than 3"),
                                      HasSubstr("sample 22 (shard-0.tar"), HasSubstr("max_skipped")));
  loader.start_epoch(1);  // it counts the samples of one epoch
  EXPECT_TRUE(loader.next());
  // A run that goes on counts on.
  LoaderState state = loader.state();
  state.epoch = 0;
  state.position = 28;
  state.skipped = 3;
  SampleLoader resumed(data, skipping);
  resumed.restore(state);
  EXPECT_THAT(error_of(resumed), HasSubstr("more than 3"));
}

TEST_P(LoaderFaults, AFileThatIsDamagedThroughoutIsNotSkipped) {
  std::set<std::int64_t> all;
  for (std::int64_t i = 4; i < 40; ++i) all.insert(i);
  LoaderOptions skipping = options();
  skipping.skip_damaged = true;
  SampleLoader loader(std::make_shared<Damaged>(60, all), skipping);
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next());
  EXPECT_THAT(error_of(loader),
              AllOf(HasSubstr("sample 4 (shard-0.tar"), HasSubstr("and so are the 16 samples after it")));
}

// A file that is cut while the training reads it is an error, and no signal.
TEST_P(LoaderFaults, AFileThatShrinksWhileItIsReadIsAnError) {
  const std::string bytes(40 * 16, 'x');
  const auto x = write("x.raw", bytes), y = write("y.raw", std::string(40 * 8, '\0'));
  const auto data = open_raw({x, ElementType::kUint8, {16}}, {y, ElementType::kInt64, {}});
  SampleLoader loader(data, options());
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next());
  std::filesystem::resize_file(x, 300);
  EXPECT_THAT(error_of(loader), AllOf(HasSubstr("sample 18: " + x.string() + ": offset 300"),
                                      HasSubstr("the file ends here, though it had 640 bytes")));
  const auto tokens = write("tokens.bin", std::string(400, '\1'));
  SampleLoader of_tokens(load_tokens(tokens, TokenType::kUint16, 4), options());
  std::filesystem::resize_file(tokens, 100);
  of_tokens.start_epoch(0);
  EXPECT_THAT(error_of(of_tokens), HasSubstr("sample 12: " + tokens.string() + ": offset 100"));
}

// What was opened stays readable when its name goes.
TEST_P(LoaderFaults, AFileThatVanishesIsReadToItsEnd) {
  const auto x = write("x.raw", std::string(40 * 16, 'x')), y = write("y.raw", std::string(40 * 8, '\0'));
  SampleLoader loader(open_raw({x, ElementType::kUint8, {16}}, {y, ElementType::kInt64, {}}), options());
  loader.start_epoch(0);
  EXPECT_TRUE(loader.next());
  std::filesystem::remove(x);
  EXPECT_EQ(error_of(loader), "none");
}

// Reading ahead that fails is an error of the batch that asked for it.
class NoReadAhead final : public Dataset {
 public:
  std::int64_t size() const override { return 16; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t>, std::span<std::byte* const>) const override {}
  Blocks blocks() const override { return {std::vector<std::int64_t>(16, 1), 1}; }
  void will_read(std::int64_t, std::int64_t) const override { throw DataError("no file there"); }

 private:
  std::vector<Field> fields_{{"index", ElementType::kInt64, {}}};
};

TEST_P(LoaderFaults, ReadingAheadThatFailsIsAnError) {
  SampleLoader loader(std::make_shared<NoReadAhead>(), options());
  loader.start_epoch(0);
  EXPECT_EQ(error_of(loader), "no file there; ");
}

INSTANTIATE_TEST_SUITE_P(Workers, LoaderFaults, ::testing::Values(0, 1, 3));

// A read that does not come back ends the run, and names where it hangs.
TEST(HangingDisk, TimesOut) {
  class Hanging final : public Dataset {
   public:
    explicit Hanging(std::shared_future<void> released) : released_(std::move(released)) {}
    std::int64_t size() const override { return 8; }
    const std::vector<Field>& fields() const override { return fields_; }
    void read(std::span<const std::int64_t> samples, std::span<std::byte* const>) const override {
      if (samples.front() >= 4) released_.wait();
    }
    std::string where(std::int64_t sample) const override { return "/mnt/data/x, offset " + std::to_string(sample); }

   private:
    std::shared_future<void> released_;
    std::vector<Field> fields_{{"index", ElementType::kInt64, {}}};
  };
  std::promise<void> release;
  std::weak_ptr<const Dataset> watched;
  {
    const auto data = std::make_shared<Hanging>(release.get_future().share());
    watched = data;
    SampleLoader loader(data,
                        {.batch_size = 4, .shuffle = false, .workers = 1, .timeout = std::chrono::milliseconds(30)});
    loader.start_epoch(0);
    EXPECT_TRUE(loader.next());
    EXPECT_THAT(error_of(loader), AllOf(HasSubstr("no batch came for 0 s: of 4 samples one is being read; the first is "
                                                  "sample 4 (/mnt/data/x, offset 4)"),
                                        HasSubstr("communication.timeout")));
  }  // it does not wait for the thread, which keeps the data set
  EXPECT_FALSE(watched.expired());
  release.set_value();
}

// Sample i takes a while, of which it is on no core.
class Slow final : public Dataset {
 public:
  explicit Slow(std::chrono::microseconds each) : each_(each) {}
  std::int64_t size() const override { return 100'000; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::this_thread::sleep_for(each_);
      std::memcpy(outputs[0] + i * 8, &samples[i], 8);
    }
  }

 private:
  std::chrono::microseconds each_;
  std::vector<Field> fields_{{"index", ElementType::kInt64, {}}};
};

// A slow disk gets more workers, because they need no core; the report shows what they waited for.
TEST(SlowDisk, GetsMoreWorkers) {
  SampleLoader loader(std::make_shared<Slow>(std::chrono::microseconds(500)), {.batch_size = 16, .seed = 1});
  loader.start_epoch(0);
  EXPECT_EQ(loader.workers(), 1);
  ReadUsage usage;
  for (int batch = 0; batch < 200 && loader.workers() < 4; ++batch) usage += loader.next()->usage;
  EXPECT_GE(loader.workers(), 4);
  EXPECT_GT(usage.waiting_ns(), usage.cpu_ns);
}

// How many bytes a file gave, and in how many requests, whatever the data set.
TEST_F(FileTest, ReadingIsMeasured) {
  constexpr std::int64_t kBytes = 1 << 17;
  const auto x = write("x.raw", std::string(64 * kBytes, 'x')), y = write("y.raw", std::string(64 * 8, '\0'));
  SampleLoader loader(open_raw({x, ElementType::kUint8, {kBytes}}, {y, ElementType::kInt64, {}}),
                      {.batch_size = 16, .seed = 1, .workers = 0});  // workers ask the kernel from time to time
  loader.start_epoch(0);
  ReadUsage usage;
  while (const auto batch = loader.next()) usage += batch->usage;
  EXPECT_GT(usage.time_ns, 0);
  EXPECT_GT(usage.cpu_ns, 0);
  if (usage.bytes == 0) GTEST_SKIP() << "this kernel does not count what a thread reads";
  EXPECT_EQ(usage.bytes, 64 * (kBytes + 8));
  EXPECT_GE(usage.requests, 2 * 48);  // fewer than one for each file and sample, where samples are neighbours
  EXPECT_LE(usage.requests, 2 * 64 + 16);
}

}  // namespace
}  // namespace dtrain::data
