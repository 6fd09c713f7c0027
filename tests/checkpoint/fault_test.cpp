// Random series of saves with a fault in the saver: it is killed at one of its calls, or one of them fails. A
// checkpoint that loads exists at each moment once one was durable, and it has the bytes that were saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faulty_saver.h"

namespace dtrain::checkpoints {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::int64_t kLastCall = 120;  // a series makes about as many

class Series {
 public:
  explicit Series(std::uint64_t seed)
      : draw_(seed), snapshot_(sizes()), options_(options_for(folder_ / "storage", retention())) {}

  void run() {
    Fault fault;
    const std::vector<std::string> kinds{"kill", "kill", "eio", "short", "nospace"};
    fault.kind = kinds[static_cast<std::size_t>(draw_.between(0, static_cast<std::int64_t>(kinds.size()) - 1))];
    fault.at = draw_.between(1, kLastCall);
    fault.no_exchange = draw_.one_in(3);
    fault.no_direct = draw_.one_in(3);
    kind_ = fault.kind;
    SCOPED_TRACE(fault.kind + " at call " + std::to_string(fault.at) + (fault.no_exchange ? ", no exchange" : "") +
                 (fault.no_direct ? ", no direct writes" : ""));
    auto saver = start_faulty(options_, snapshot_.memory(), fault);
    for (auto left = draw_.between(2, 5); left > 0; --left) save(*saver);
    saver.reset();
    check_end();
  }

 private:
  std::vector<NamedSize> sizes() {
    const auto size = [&] {
      return static_cast<std::size_t>(draw_.one_in(20) ? draw_.between(0, 9'000'000) : draw_.between(0, 20'000));
    };
    return {{kModelFile, size()}, {kOptimizerFile, size()}, {rank_file(0), size()}};
  }
  Retention retention() { return {static_cast<int>(draw_.between(1, 3)), static_cast<int>(draw_.between(0, 2))}; }
  About next_about() {
    if (step_ == 0 || !draw_.one_in(4)) step_ += draw_.between(1, 10);
    About about = about_step(step_);
    about.time = static_cast<double>(number_);
    if (draw_.one_in(2)) {
      about.metric = "loss";
      about.metric_value = draw_.fraction();
    }
    return about;
  }

  void save(Saver& saver) {
    const About about = next_about();
    const std::uint64_t content = draw_.one_in(5) ? last_content_ : ++last_content_;
    snapshot_.fill(content);
    versions_[about.step].push_back(snapshot_.contents());
    const SaveResult result = save_and_wait(saver, snapshot_, ++number_, about, content);
    ASSERT_EQ(snapshot_.memory().freed(), number_);
    if (result.error.empty()) {
      ASSERT_EQ(result.path, options_.storage / ("step-" + std::to_string(about.step)));
      durable_ = about.step;
    } else {
      ASSERT_THAT(result.error, kind_ == "kill"      ? HasSubstr("killed by signal 9")
                                : kind_ == "nospace" ? HasSubstr("No space left on device")
                                                     : HasSubstr("Input/output error"));
      const std::string place = kind_ == "kill" ? "of batch " : options_.storage.string();
      ASSERT_THAT(result.error, HasSubstr(place));
    }
    check_newest();
  }

  // Also the checkpoint of a save that is reported as failed may be there, whole.
  void check_newest() {
    const Newest newest = find_newest(options_.storage);
    for (const std::string& passed : newest.passed_over) ASSERT_THAT(passed, HasSubstr(".partial-step-")) << passed;
    ASSERT_TRUE(newest.entry || !durable_) << "nothing is left of step " << *durable_;
    if (!newest.entry) return;
    const std::int64_t step = newest.entry->about.step;
    ASSERT_GE(step, durable_.value_or(0));
    ASSERT_TRUE(versions_.contains(step)) << step;
    const auto& versions = versions_[step];
    const bool known = std::any_of(versions.begin(), versions.end(), [&](const std::vector<std::string>& contents) {
      for (std::size_t i = 0; i < contents.size(); ++i) {
        if (read_file(newest.entry->path / snapshot_.images()[i].name) != contents[i]) return false;
      }
      return true;
    });
    ASSERT_TRUE(known) << "step " << step << " has bytes that were never saved";
  }

  // A sound saver works with what there is, removes what was left over, and keeps what it should.
  void check_end() {
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(wait_for_savers(options_.storage, kPatience));
    check_newest();
    About about = about_step(++step_);
    Saver saver(options_, snapshot_.memory());
    versions_[step_].emplace_back();
    const SaveResult result = save_and_wait(saver, snapshot_, ++number_, about, ++last_content_);
    ASSERT_EQ(result.error, "");
    const auto left = list(options_.storage);
    ASSERT_TRUE(superseded(left, step_, options_.retention).empty());
    ASSERT_EQ(left.back().about.step, step_);
    for (const std::string& name : names_in(options_.storage)) ASSERT_TRUE(name.starts_with("step-")) << name;
    for (const Entry& entry : left) ASSERT_TRUE(verify(entry.path).empty()) << entry.path;
  }

  TemporaryFolder folder_;
  Draw draw_;
  TestSnapshot snapshot_;
  SaverOptions options_;
  std::string kind_;
  std::int64_t step_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t last_content_ = 0;
  std::optional<std::int64_t> durable_;
  std::map<std::int64_t, std::vector<std::vector<std::string>>> versions_;
};

TEST(CheckpointFaults, SeriesOfSaves) {
  for (std::uint64_t seed = soak_seed(); seed < soak_seed() + soak_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Series(seed).run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A flipped bit or a lost end in any file of the newest checkpoints: each is named, and an older one is taken.
TEST(CheckpointFaults, DamagedFiles) {
  for (std::uint64_t seed = soak_seed(); seed < soak_seed() + soak_cases(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    TemporaryFolder folder;
    const auto content = [&](std::int64_t most) {
      std::string text(static_cast<std::size_t>(draw.between(1, most)), '\0');
      const char some = static_cast<char>(draw.between(0, 255));
      for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(some + static_cast<char>(i * 7));
      return text;
    };
    const std::int64_t count = draw.between(2, 4);
    for (std::int64_t step = 1; step <= count; ++step) {
      About about = about_step(step);
      about.metric = "loss";
      about.metric_value = draw.fraction();
      write_checkpoint(folder.path(), about,
                       {{kModelFile, content(draw.one_in(20) ? 5'000'000 : 5000)}, {kStateFile, content(500)}});
    }
    const std::int64_t damaged = draw.between(1, count);
    std::vector<std::string> names;
    for (std::int64_t step = count; step > count - damaged; --step) {
      const auto checkpoint = folder.path() / ("step-" + std::to_string(step));
      const std::vector<std::string> files{kModelFile, kStateFile, kManifestFile};
      const auto path = checkpoint / files[static_cast<std::size_t>(draw.between(0, 2))];
      std::string bytes = read_file(path);
      const auto at = static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(bytes.size()) - 1));
      if (draw.one_in(3)) {
        bytes.resize(at);
      } else {
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.between(0, 7)));
      }
      write_file_atomic(path, bytes);
      names.push_back("step-" + std::to_string(step) + ": ");
      ASSERT_FALSE(verify(checkpoint).empty()) << path << " at " << at;
      ASSERT_THAT(verify(checkpoint).front(), HasSubstr(path.filename().string()));
    }
    const Newest newest = find_newest(folder.path());
    ASSERT_EQ(newest.passed_over.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) ASSERT_TRUE(newest.passed_over[i].starts_with(names[i]));
    ASSERT_EQ(newest.entry.has_value(), damaged < count);
    ASSERT_EQ(newest.entry ? newest.entry->about.step : 0, count - damaged);
  }
}

}  // namespace
}  // namespace dtrain::checkpoints
