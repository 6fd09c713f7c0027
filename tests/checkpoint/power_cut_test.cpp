// A series of saves is recorded; then the power is cut at random moments of it, and what was not synchronised is partly
// lost. Whatever was reported as durable, or something newer, loads.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "power_cut.h"

namespace dtrain::checkpoints {
namespace {

constexpr std::uint64_t kCutsPerSeries = 25;

struct Moment {
  std::size_t line;  // as many lines of the log had been written
  std::int64_t step;
};

// A recorded series of saves.
class Recording {
 public:
  explicit Recording(std::uint64_t seed) : draw_(seed) {
    TemporaryFolder folder;
    TestSnapshot snapshot({{kModelFile, size()}, {kOptimizerFile, size()}, {rank_file(0), size()}});
    const SaverOptions options =
        options_for(folder / "storage", {static_cast<int>(draw_.between(1, 2)), static_cast<int>(draw_.between(0, 1))});
    Fault none;
    none.log = folder / "log";
    none.no_exchange = draw_.one_in(2);
    none.no_direct = draw_.one_in(2);
    auto saver = start_faulty(options, snapshot.memory(), none);
    std::int64_t step = 0;
    for (std::uint64_t number = 1; number <= 5; ++number) {
      if (number == 1 || !draw_.one_in(3)) step += draw_.between(1, 10);
      About about = about_step(step);
      about.time = static_cast<double>(number);
      about.metric = "loss";
      about.metric_value = draw_.fraction();
      snapshot.fill(number);
      versions_[step].push_back(snapshot.contents());
      const SaveResult result = save_and_wait(*saver, snapshot, number, about, number);
      if (!result.error.empty()) throw std::runtime_error(result.error);
      durable_.push_back({read_lines(none.log).size(), step});
    }
    saver.reset();
    lines_ = read_lines(none.log);
    images_ = snapshot.images();
  }

  void cut(std::uint64_t seed) const {
    Draw draw(seed);
    const auto at = static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(lines_.size())));
    SCOPED_TRACE("cut after " + std::to_string(at) + " of " + std::to_string(lines_.size()) + " calls, seed " +
                 std::to_string(seed));
    SimulatedDisk disk;
    for (std::size_t i = 0; i < at; ++i) disk.apply(lines_[i]);
    const TemporaryFolder folder;
    disk.write_to(folder / "storage", draw);

    const Newest newest = find_newest(folder / "storage");
    std::optional<std::int64_t> durable;
    for (const Moment& moment : durable_) {
      if (moment.line <= at) durable = moment.step;
    }
    ASSERT_TRUE(newest.entry || !durable) << "step " << *durable << " is lost";
    if (!newest.entry) return;
    ASSERT_GE(newest.entry->about.step, durable.value_or(0));
    ASSERT_TRUE(was_saved(*newest.entry));
    if (draw.one_in(5)) go_on(folder / "storage", *newest.entry);
  }
  std::size_t calls() const { return lines_.size(); }

 private:
  std::size_t size() { return static_cast<std::size_t>(draw_.between(0, 9000)); }

  static std::vector<std::string> read_lines(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  bool was_saved(const Entry& entry) const {
    const auto& versions = versions_.at(entry.about.step);
    return std::any_of(versions.begin(), versions.end(), [&](const std::vector<std::string>& contents) {
      for (std::size_t i = 0; i < contents.size(); ++i) {
        if (read_file(entry.path / images_[i].name) != contents[i]) return false;
      }
      return true;
    });
  }

  // The next attempt works with what the disk holds.
  static void go_on(const std::filesystem::path& storage, const Entry& from) {
    TestSnapshot snapshot({{kModelFile, 1000}});
    Saver saver(options_for(storage, {1, 0}), snapshot.memory());
    const SaveResult result = save_and_wait(saver, snapshot, 1, about_step(from.about.step + 1), 1);
    ASSERT_EQ(result.error, "");
    const Newest newest = find_newest(storage);
    ASSERT_TRUE(newest.entry);
    ASSERT_GE(newest.entry->about.step, from.about.step + 1);
  }

  Draw draw_;
  std::vector<FileImage> images_;
  std::vector<std::string> lines_;
  std::vector<Moment> durable_;
  std::map<std::int64_t, std::vector<std::vector<std::string>>> versions_;
};

TEST(PowerCut, WhatWasDurableLoads) {
  std::optional<Recording> recording;
  for (std::uint64_t seed = soak_seed(); seed < soak_seed() + soak_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint64_t series = seed / kCutsPerSeries;
    if (!recording || seed % kCutsPerSeries == 0) recording.emplace(series);
    ASSERT_GT(recording->calls(), 50u) << "the saver's calls are not seen";
    recording->cut(seed);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PowerCut, ACompanionIsDurableBeforeItsCheckpoint) {
  const TemporaryFolder folder;
  const std::filesystem::path storage = folder / "storage";
  std::filesystem::create_directories(storage);
  std::ofstream(storage / "metrics.jsonl") << "{}\n";
  TestSnapshot snapshot({{kModelFile, 1000}});
  Fault none;
  none.log = folder / "log";
  auto saver = start_faulty(options_for(storage), snapshot.memory(), none);
  snapshot.fill(1);
  snapshot.mark_copied(1);
  SaveRequest request = request_for(snapshot, 1, about_step(7));
  request.companion = storage / "metrics.jsonl";
  saver->save(request);
  const auto result = saver->wait(kPatience);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->error, "");
  const std::string log = read_file(none.log);
  const auto synced = log.find("fsync metrics.jsonl\n");
  ASSERT_NE(synced, std::string::npos) << log;
  EXPECT_LT(synced, log.find("rename .partial-step-7 step-7")) << log;
}

// The simulation itself: a writer that forgets to synchronise is found out.
TEST(PowerCut, WithoutSynchronisingSomethingIsLost) {
  const std::vector<std::string> careless{"mkdir .partial-step-1", "create .partial-step-1/model.safetensors",
                                          "write .partial-step-1/model.safetensors 0 616263",
                                          "rename .partial-step-1 step-1", "syncdir "};
  SimulatedDisk disk;
  for (const std::string& line : careless) disk.apply(line);
  int lost = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Draw draw(seed);
    const TemporaryFolder folder;
    disk.write_to(folder / "storage", draw);
    std::error_code code;
    const auto file = folder / "storage" / "step-1" / "model.safetensors";
    ASSERT_TRUE(std::filesystem::is_directory(file.parent_path()));
    if (!std::filesystem::exists(file, code) || read_file(file) != "abc") ++lost;
  }
  EXPECT_GT(lost, 5);
  for (const char* line : {"fsync step-1/model.safetensors", "syncdir step-1"}) disk.apply(line);
  Draw draw(1);
  const TemporaryFolder folder;
  disk.write_to(folder / "storage", draw);
  EXPECT_EQ(read_file(folder / "storage" / "step-1" / "model.safetensors"), "abc");
}

}  // namespace
}  // namespace dtrain::checkpoints
