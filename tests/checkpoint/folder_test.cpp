// The folder of checkpoints without a saver: manifests, what is listed, what is taken, what is kept.
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "dtrain/base/error.h"
#include "faulty_saver.h"

namespace dtrain::checkpoints {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Manifest example() {
  About about = about_step(12);
  about.epoch = 3;
  about.world_size = 2;
  about.metric = "loss";
  about.metric_value = 0.1;
  about.smaller_is_better = false;
  about.run = {{"name", "x"}, {"text", "with \"quotes\" and \n lines"}};
  return {about, {{"model.safetensors", kPieceBytes + 1, {1, 2}}, {"rank-0000.safetensors", 0, {}}}};
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = example();
  const Manifest read = parse_manifest(to_text(manifest));
  EXPECT_EQ(to_json(read.about), to_json(manifest.about));
  EXPECT_EQ(read.files, manifest.files);
  EXPECT_EQ(total_bytes(read.files), static_cast<std::int64_t>(kPieceBytes) + 1);
}

TEST(Manifest, ANumberThatIsNoneIsNoMetric) {
  Manifest manifest = example();
  manifest.about.metric_value = std::nan("");
  EXPECT_FALSE(parse_manifest(to_text(manifest)).about.metric_value);
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_checksum(std::string text) {
  text.resize(text.rfind("\n\"manifest_checksum\""));
  return text + "\n\"manifest_checksum\":\"" + checksum_text(crc32c(text)) + "\"}\n";
}

TEST(Manifest, EveryChangedByteIsNoticed) {
  const std::string text = to_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_NE(refusal(changed), "accepted") << i;
    EXPECT_NE(refusal(text.substr(0, i)), "accepted") << i;
  }
  EXPECT_THAT(refusal(text + " "), HasSubstr("its last line is not its checksum"));
}

TEST(Manifest, WhatIsMalformedIsNamed) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = to_text(example());
    text.replace(text.find(from), from.size(), to);
    return refusal(with_checksum(text));
  };
  EXPECT_THAT(changed("\"version\":1", "\"version\":2"), HasSubstr("it has version 2 of the format"));
  EXPECT_THAT(changed("model.safetensors", "../model"), HasSubstr("the name '../model'"));
  EXPECT_THAT(changed("model.safetensors", "manifest.json"), HasSubstr("the name 'manifest.json'"));
  EXPECT_THAT(changed("rank-0000.safetensors", "model.safetensors"), HasSubstr("'model.safetensors' twice"));
  EXPECT_THAT(changed("00000001", "0000000G"), HasSubstr("malformed checksum"));
  EXPECT_THAT(changed("4194305", "8388609"), HasSubstr("has 2 checksums for 8388609 bytes"));
  EXPECT_THAT(changed("4194305", "-1"), HasSubstr("the size of the file"));
  EXPECT_THAT(changed("crc32c", "md5"), HasSubstr("unknown kind \"md5\""));
  EXPECT_THAT(changed("\"step\":12", "\"step\":-1"), HasSubstr("out of range"));
  EXPECT_THAT(changed("\"epoch\"", "\"ebbe\""), HasSubstr("epoch"));
  EXPECT_THAT(changed("\"name\":\"x\"", "\"name\":" + std::string(200, '[') + std::string(200, ']')),
              HasSubstr("nested too deeply"));
}

class FolderTest : public testing::Test {
 protected:
  void make(std::int64_t step, std::optional<double> metric = {}) {
    About about = about_step(step);
    if (metric) about.metric = "loss";
    about.metric_value = metric;
    write_checkpoint(folder_.path(), about, {{kModelFile, "content of " + std::to_string(step)}, {kStateFile, "{}"}});
  }
  std::filesystem::path step(std::int64_t number) const { return folder_ / ("step-" + std::to_string(number)); }

  TemporaryFolder folder_;
};

std::vector<std::int64_t> steps_of(const std::vector<Entry>& entries) {
  std::vector<std::int64_t> steps;
  for (const Entry& entry : entries) steps.push_back(entry.about.step);
  return steps;
}

TEST_F(FolderTest, NoFolderHasNoCheckpoints) {
  EXPECT_THAT(list(folder_ / "nowhere"), IsEmpty());
  EXPECT_FALSE(find_newest(folder_ / "nowhere").entry);
  EXPECT_TRUE(wait_for_savers(folder_ / "nowhere", std::chrono::milliseconds(0)));
  write_file_atomic(folder_ / "file", "x");
  EXPECT_THROW(list(folder_ / "file"), SystemError);
}

TEST_F(FolderTest, ListsByNumberAndIgnoresJunk) {
  for (const int number : {100, 20, 3}) make(number);
  for (const char* name : {"step-", "step-x", "step-04", "step--5", ".partial-step-7", ".deleted-step-8", "other"}) {
    std::filesystem::create_directory(folder_ / name);
  }
  write_file_atomic(folder_ / "step-9", "a file");
  EXPECT_THAT(steps_of(list(folder_.path())), ElementsAre(3, 9, 20, 100));
  EXPECT_THAT(list(folder_.path())[1].damage, HasSubstr("Not a directory"));
}

TEST_F(FolderTest, PassesOverWithReasons) {
  for (const int number : {1, 2, 3, 4, 5, 6}) make(number);
  std::filesystem::create_directory(folder_ / ".partial-step-7");
  std::filesystem::remove(step(6) / kManifestFile);
  write_file_atomic(step(5) / kModelFile, "content of 6");
  write_file_atomic(step(4) / kModelFile, "longer than it was");
  std::filesystem::remove(step(3) / kStateFile);
  std::filesystem::rename(step(2) / kManifestFile, step(2) / "gone");
  std::filesystem::copy_file(step(1) / kManifestFile, step(2) / kManifestFile);
  const Newest newest = find_newest(folder_.path());
  ASSERT_TRUE(newest.entry);
  EXPECT_EQ(newest.entry->about.step, 1);
  EXPECT_THAT(newest.passed_over,
              ElementsAre(AllOf(HasSubstr("step-6: "), HasSubstr("manifest.json")),
                          AllOf(HasSubstr("step-5: model.safetensors at byte 0 is damaged"), HasSubstr("instead of")),
                          HasSubstr("step-4: model.safetensors has 18 bytes instead of 12"),
                          HasSubstr("step-3: state.json cannot be read: No such file"),
                          HasSubstr("it is the manifest of step 1"), ".partial-step-7: it was not completed"));
}

TEST_F(FolderTest, ReplacedOneCountsUntilItsReplacementIsThere) {
  make(5);
  std::filesystem::rename(step(5), folder_ / ".replaced-step-5");
  const Newest newest = find_newest(folder_.path());
  ASSERT_TRUE(newest.entry);
  EXPECT_EQ(newest.entry->path, folder_ / ".replaced-step-5");
  make(5);
  EXPECT_EQ(find_newest(folder_.path()).entry->path, step(5));
  EXPECT_THAT(steps_of(list(folder_.path())), ElementsAre(5));
}

TEST_F(FolderTest, VerifyTellsItsProgressAndEveryDamage) {
  const std::string content(2 * kPieceBytes + 10, 'x');
  write_checkpoint(folder_.path(), about_step(1), {{kModelFile, content}, {kStateFile, "{}"}});
  std::int64_t last = -1;
  std::int64_t all = 0;
  EXPECT_THAT(verify(step(1), [&](std::int64_t done, std::int64_t total) { last = done, all = total; }), IsEmpty());
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, static_cast<std::int64_t>(content.size()) + 2);
  std::string damaged = content;
  damaged[0] = damaged[2 * kPieceBytes] = 'y';
  write_file_atomic(step(1) / kModelFile, damaged);
  EXPECT_THAT(verify(step(1)), ElementsAre(HasSubstr("model.safetensors at byte 0 is damaged"),
                                           HasSubstr("model.safetensors at byte 8388608 is damaged")));
}

TEST_F(FolderTest, RemovesWhatItIsToldAndNothingElse) {
  for (const int number : {1, 2, 3}) make(number);
  std::filesystem::create_directories(folder_ / ".deleted-step-2" / "left over");
  remove_checkpoints({step(2), step(3)});
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("step-1"));
  EXPECT_THROW(remove_checkpoints({folder_.path()}), SystemError);
  EXPECT_THROW(remove_checkpoints({step(9)}), SystemError);
}

TEST_F(FolderTest, StorageIsWhereTheRunSays) {
  EXPECT_EQ(storage_of_run(folder_ / "run"), folder_ / "run" / "checkpoints");
  write_storage_of_run(folder_ / "run", "/mnt/disk/run-1");
  EXPECT_EQ(storage_of_run(folder_ / "run"), "/mnt/disk/run-1");
  write_file_atomic(folder_ / "run" / "checkpoints" / "storage.json", "[]");
  EXPECT_THROW(storage_of_run(folder_ / "run"), DataError);
}

TEST_F(FolderTest, BestIsOfTheNewestMetricAndTheEarlierOfEqualOnes) {
  make(1, 0.5);
  make(2, 0.3);
  make(3, 0.3);
  make(4);
  make(5, 0.4);
  EXPECT_THAT(steps_of(best_of(list(folder_.path()), 3)), ElementsAre(2, 3, 5));
  std::filesystem::remove(step(2) / kModelFile);
  EXPECT_THAT(steps_of(best_of(list(folder_.path()), 1)), ElementsAre(3));
  About other = about_step(6);
  other.metric = "accuracy";
  other.metric_value = 0.9;
  other.smaller_is_better = false;
  write_checkpoint(folder_.path(), other, {{kModelFile, "x"}});
  EXPECT_THAT(steps_of(best_of(list(folder_.path()), 3)), ElementsAre(6));
}

// Random saves against a model that keeps a plain list of what must be there.
TEST(Retention, AgreesWithAModel) {
  struct Kept {
    std::int64_t step;
    std::optional<double> metric;
  };
  for (std::uint64_t seed = soak_seed(); seed < soak_seed() + soak_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    const Retention retention{static_cast<int>(draw.between(0, 4)), static_cast<int>(draw.between(0, 3))};
    const bool smaller = draw.one_in(2);
    std::vector<Entry> there;
    std::vector<Kept> model;
    for (std::int64_t step = 1; step <= 30; ++step) {
      Kept one{step, {}};
      if (!draw.one_in(3)) one.metric = static_cast<double>(draw.between(0, 6));
      Entry entry;
      entry.path = "/step-" + std::to_string(step);
      entry.about = about_step(step);
      entry.about.metric = one.metric ? "loss" : "";
      entry.about.metric_value = one.metric;
      entry.about.smaller_is_better = smaller;
      there.push_back(entry);
      for (const Entry& gone : superseded(there, step, retention)) {
        std::erase_if(there, [&](const Entry& other) { return other.path == gone.path; });
      }

      model.push_back(one);
      std::vector<Kept> kept;
      for (const Kept& candidate : model) {
        const auto newer = std::count_if(model.begin(), model.end(), [&](auto& k) { return k.step > candidate.step; });
        const auto better = std::count_if(model.begin(), model.end(), [&](const Kept& k) {
          if (!k.metric || !candidate.metric) return false;
          const double ahead = smaller ? *candidate.metric - *k.metric : *k.metric - *candidate.metric;
          return ahead > 0 || (ahead == 0 && k.step < candidate.step);
        });
        const bool is_new = newer < std::max(retention.latest, 1);
        if (is_new || (candidate.metric && better < retention.best)) kept.push_back(candidate);
      }
      model = kept;
      std::vector<std::int64_t> expected;
      for (const Kept& k : model) expected.push_back(k.step);
      ASSERT_EQ(steps_of(there), expected) << "after step " << step;
    }
  }
}

TEST(Retention, LeavesWhatAwaitsItsValidation) {
  std::vector<Entry> there;
  for (const std::int64_t step : {10, 20, 30, 40}) {
    there.emplace_back().about = about_step(step);
    there.back().path = "/step-" + std::to_string(step);
    there.back().about.awaits_validation = step == 20;
  }
  EXPECT_THAT(steps_of(superseded(there, 40, {.latest = 1, .best = 1})), ElementsAre(10, 30));
  there[1].about.awaits_validation = false;  // it has ended, and was no better than others
  EXPECT_THAT(steps_of(superseded(there, 40, {.latest = 1, .best = 1})), ElementsAre(10, 20, 30));
}

TEST(Retention, LeavesWhatAResumeHasPassedOver) {
  Retention retention;
  retention.passed_over = {40};
  const auto entry = [](std::int64_t step, double metric, double time) {
    Entry result;
    result.path = "/step-" + std::to_string(step);
    result.about = about_step(step);
    result.about.metric = "loss";
    result.about.metric_value = metric;
    result.about.time = time;
    return result;
  };
  // 40 was passed over, although it looks whole; 45 was saved after the resume, by a clock that was set back.
  const std::vector<Entry> there{entry(10, 3, 100), entry(20, 2, 200), entry(40, 1, 400), entry(45, 9, 50),
                                 entry(50, 5, 1500)};
  const auto gone = superseded(there, 50, retention);
  EXPECT_THAT(steps_of(gone), ElementsAre(10, 45)) << "20 is the best that can be used";
  const std::vector<Entry> before(there.begin(), there.begin() + 3);
  EXPECT_THAT(steps_of(superseded(before, 40, retention)), ElementsAre(10, 20)) << "40 is this run's own now";
}

}  // namespace
}  // namespace dtrain::checkpoints
