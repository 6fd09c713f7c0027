// A model of what a loader promises: whatever happens to a run, its samples are those of the run that nothing happened
// to. Seeded cases draw a data set of any format, stop within epochs, and go on with other ranks, workers and batches.
// The model is the undisturbed sequence: one rank, no worker, one sample after the other.
//
// DTRAIN_RESUME_CASES: how many cases (1,000). DTRAIN_RESUME_SEED: of the first one.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "data_cases.h"
#include "dtrain/base/error.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/loader.h"

namespace dtrain::data {
namespace {

constexpr std::int64_t kWindow = 3;  // blocks of one byte: three are shuffled together

// A sample's bytes in all fields, without the padding that its batch has brought.
std::string bytes_of(const Dataset& dataset, const HostBatch& batch, std::int64_t place) {
  std::string bytes;
  for (std::size_t f = 0; f < batch.fields.size(); ++f) {
    Field field = dataset.fields()[f];
    const bool is_padded = !field.is_fixed();
    field.shape = batch.shapes[f];
    std::string own(
        reinterpret_cast<const char*>(batch.fields[f].get()) + static_cast<std::size_t>(place) * field.bytes(),
        field.bytes());
    if (is_padded) own.erase(own.find_last_not_of('\xff') + 1);
    bytes += own + "|";
  }
  return bytes;
}

using Sequence = std::vector<std::string>;  // samples

Sequence undisturbed(const std::shared_ptr<const Dataset>& dataset, std::uint64_t seed, std::int64_t epoch,
                     bool shuffle) {
  SampleLoader loader(dataset, {.shuffle = shuffle, .seed = seed, .workers = 0, .shuffle_window = kWindow});
  loader.start_epoch(epoch);
  Sequence samples;
  while (const auto batch = loader.next()) samples.push_back(bytes_of(*dataset, *batch, 0));
  return samples;
}

class Case {
 public:
  Case(const DataCase& data, std::uint64_t number)
      : data_(data), random_{0x63617365, number}, seed_(random_.below(3)), shuffle_(random_.below(5) > 0) {}

  // Trains some epochs with interruptions, and compares each global batch.
  void run() {
    const std::int64_t epochs = 1 + static_cast<std::int64_t>(random_.below(2));
    std::string state;
    std::int64_t epoch = 0, position = 0;
    for (int stop = 0; epoch < epochs && !::testing::Test::HasFailure(); ++stop) {
      ASSERT_LT(stop, 100);
      start_ranks(state, epoch);
      const std::int64_t stops_after = random_.below(3) == 0 ? INT64_MAX : static_cast<std::int64_t>(random_.below(9));
      bool ended = false;
      for (std::int64_t batches = 0; batches < stops_after && !ended; ++batches) {
        ended = !global_batch(epoch, position);
        if (::testing::Test::HasFailure()) return;
      }
      if (ended) {
        const std::int64_t left = data_.dataset->size() - position;
        ASSERT_LT(left, drop_last_ ? global_batch_ : 1);
        ++epoch;
        position = 0;
        state.clear();
        continue;
      }
      state = one_of_the_ranks().state().text();
      ASSERT_LE(state.size(), LoaderState::kMostBytes);
      ASSERT_EQ(LoaderState::parse(state).position, position);
    }
  }

 private:
  void start_ranks(const std::string& state, std::int64_t epoch) {
    constexpr int kWorlds[] = {1, 2, 3, 4}, kWorkers[] = {0, 1, 3};
    const int world = kWorlds[random_.below(4)];
    const auto batch = static_cast<std::int64_t>(1 + random_.below(6));
    global_batch_ = batch * world;
    drop_last_ = random_.below(2) == 0;
    ranks_.clear();
    for (int rank = 0; rank < world; ++rank) {
      LoaderOptions options{.batch_size = batch, .rank = rank, .world_size = world, .shuffle = shuffle_};
      options.drop_last = drop_last_;
      options.seed = seed_;
      options.workers = kWorkers[random_.below(3)];
      options.prefetch = static_cast<int>(random_.below(5));
      options.shuffle_window = kWindow;
      ranks_.push_back(std::make_unique<SampleLoader>(data_.dataset, options));
      state.empty() ? ranks_.back()->start_epoch(epoch) : ranks_.back()->restore(LoaderState::parse(state));
    }
  }

  // False at the end of the epoch.
  bool global_batch(std::int64_t epoch, std::int64_t& position) {
    Sequence samples;
    bool any = false;
    for (const auto& rank : ranks_) {
      const auto batch = rank->next();
      if (!batch) continue;
      any = true;
      for (std::int64_t i = 0; i < batch->samples; ++i) samples.push_back(bytes_of(*data_.dataset, *batch, i));
    }
    if (!any) return false;
    const Sequence& whole = expected(epoch);
    const auto count = static_cast<std::int64_t>(samples.size());
    EXPECT_TRUE(count == global_batch_ || position + count == data_.dataset->size());
    EXPECT_EQ(samples, Sequence(whole.begin() + position, whole.begin() + position + count))
        << data_.name << ", epoch " << epoch << ", position " << position << ", " << ranks_.size() << " ranks";
    position += count;
    return true;
  }

  const Sequence& expected(std::int64_t epoch) const {
    static std::map<std::string, Sequence> known;
    const std::string key =
        data_.name + "/" + std::to_string(seed_) + "/" + std::to_string(epoch) + (shuffle_ ? "/shuffled" : "/in order");
    const auto found = known.find(key);
    return found != known.end() ? found->second
                                : known.emplace(key, undisturbed(data_.dataset, seed_, epoch, shuffle_)).first->second;
  }

  const SampleLoader& one_of_the_ranks() { return *ranks_[random_.below(ranks_.size())]; }

  const DataCase& data_;
  RandomStream random_;
  const std::uint64_t seed_;
  const bool shuffle_;
  std::int64_t global_batch_ = 0;
  bool drop_last_ = true;
  std::vector<std::unique_ptr<SampleLoader>> ranks_;
};

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

TEST(ResumeCases, ContinueTheUndisturbedSequence) {
  const TemporaryFolder folder;
  const std::vector<DataCase> data = data_cases(folder.path());
  const std::int64_t count = from_environment("DTRAIN_RESUME_CASES", 1'000);
  const std::int64_t first = from_environment("DTRAIN_RESUME_SEED", 0);
  for (std::int64_t number = first; number < first + count; ++number) {
    const DataCase& one = data[static_cast<std::size_t>(number) % data.size()];
    SCOPED_TRACE("case " + std::to_string(number) + ": " + one.name);
    Case(one, static_cast<std::uint64_t>(number)).run();
    ASSERT_FALSE(HasFailure());
  }
}

// The model's own sequence is one: every sample once, in another order in each epoch.
TEST(ResumeCases, TheUndisturbedSequenceHasEverySampleOnce) {
  const TemporaryFolder folder;
  for (const DataCase& one : data_cases(folder.path())) {
    SCOPED_TRACE(one.name);
    const Sequence in_order = undisturbed(one.dataset, 1, 0, false), first = undisturbed(one.dataset, 1, 0, true);
    EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 211u);
    EXPECT_THAT(first, ::testing::Not(::testing::ElementsAreArray(in_order)));
    EXPECT_THAT(first, ::testing::Not(::testing::ElementsAreArray(undisturbed(one.dataset, 1, 1, true))));
    EXPECT_THAT(first, ::testing::Not(::testing::ElementsAreArray(undisturbed(one.dataset, 2, 0, true))));
    EXPECT_THAT(first, ::testing::ElementsAreArray(undisturbed(one.dataset, 1, 0, true)));
  }
}

TEST(LoaderState, IsRefusedForAnotherOrder) {
  const TemporaryFolder folder;
  const std::vector<DataCase> data = data_cases(folder.path());
  SampleLoader loader(data[0].dataset, {.batch_size = 4, .seed = 1});
  loader.start_epoch(2, 8);
  const LoaderState state = loader.state();
  EXPECT_EQ(LoaderState::parse(state.text()), state);
  SampleLoader same(data[1].dataset, {.batch_size = 8, .seed = 1});
  same.restore(state);  // as many samples, and the same seed: the same order
  EXPECT_EQ(same.state(), state);
  EXPECT_THROW(SampleLoader(data[0].dataset, {.batch_size = 4, .seed = 2}).restore(state), DataError);
  EXPECT_THROW(SampleLoader(data[0].dataset, {.batch_size = 4, .shuffle = false, .seed = 1}).restore(state), DataError);
  const auto blocks = std::make_shared<InBlocks>(data[0].dataset, std::vector<std::int64_t>{100, 111});
  EXPECT_THROW(SampleLoader(blocks, {.batch_size = 4, .seed = 1, .shuffle_window = 1}).restore(state), DataError);
  SampleLoader(blocks, {.batch_size = 4, .seed = 1}).restore(state);  // all blocks in one window
  for (const char* const text : {"", "{}", "[1]", R"({"epoch": 1})", R"({"epoch": "1"})", "{\"epoch\": 1"}) {
    EXPECT_THROW(LoaderState::parse(text), DataError) << text;
  }
}

}  // namespace
}  // namespace dtrain::data
