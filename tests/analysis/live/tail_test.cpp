// Following files that grow, get shorter, and have other lines than before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "live/feeds.h"
#include "monitor/dump.h"
#include "read/run_files.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using testing::ElementsAre;
using testing::IsEmpty;

class FileTailTest : public testing::Test {
 protected:
  void append(const std::string& text) { folder_.append("file", text); }
  void cut_to(std::uintmax_t size) { fs::resize_file(path(), size); }
  fs::path path() const { return folder_.path() / "file"; }
  std::vector<std::string> poll(FileTail& tail) {
    std::vector<std::string> lines;
    tail.poll([&](std::string_view line) { lines.emplace_back(line); }, [&] { lines.emplace_back("(skipped)"); });
    return lines;
  }
  RunFolder folder_;
};

TEST_F(FileTailTest, HandsOnEachLineOnceAndWaitsForItsEnd) {
  FileTail tail(path());
  EXPECT_FALSE(tail.poll([](std::string_view) {})) << "it is not there yet";
  append("one\ntw");
  EXPECT_THAT(poll(tail), ElementsAre("one"));
  EXPECT_THAT(poll(tail), IsEmpty());
  append("o\nthree\n");
  EXPECT_THAT(poll(tail), ElementsAre("two", "three"));
  EXPECT_THAT(poll(tail), IsEmpty());
}

TEST_F(FileTailTest, NamesTheLineOrItsByte) {
  FileTail tail(path(), {.head = 8, .most = 11, .again = 0});
  std::vector<std::string> places;
  const auto look = [&] { tail.poll([&](std::string_view) { places.push_back(tail.place()); }); };
  append("one\n\ntwo\n");
  look();
  EXPECT_THAT(places, ElementsAre("file:1", "file:3"));
  places.clear();
  append("three three three\nfour\nfive\n");
  look();
  EXPECT_THAT(places, ElementsAre("file, byte 27", "file, byte 32")) << "lines were omitted";
  EXPECT_EQ(tail.problem(), "");
}

TEST_F(FileTailTest, SaysWhyItReadsNothing) {
  fs::create_symlink("/dev/zero", path());
  FileTail device(path());
  EXPECT_FALSE(device.poll([](std::string_view) {}));
  EXPECT_EQ(device.problem(), path().string() + " is a device, not a file");
  fs::remove(path());
  append("one\n");
  fs::resize_file(path(), 60ull << 30);
  FileTail sparse(path());
  EXPECT_THAT(poll(sparse), ElementsAre("one", "(skipped)"));
  EXPECT_THAT(sparse.problem(), testing::HasSubstr("longer than 1.0 MiB; it is not read"));
}

TEST_F(FileTailTest, GoesOnAtTheNewEndOfAFileThatGotShorter) {
  FileTail tail(path());
  append("one\ntwo\nthree\n");
  poll(tail);
  cut_to(4);
  EXPECT_THAT(poll(tail), IsEmpty()) << "what stands there was read";
  append("four\n");
  EXPECT_THAT(poll(tail), ElementsAre("four"));
}

TEST_F(FileTailTest, FindsTheNextLineWhereOthersStandInstead) {
  FileTail tail(path());
  append("one\ntwo\nthree\n");  // read up to 14
  poll(tail);
  cut_to(4);
  append("a long line in its place\nfour\n");
  EXPECT_THAT(poll(tail), ElementsAre("four")) << "the first is cut";
}

TEST_F(FileTailTest, WhatWasReplacedIsLookedForBeforeTheNewEnd) {
  FileTail tail(path(), {.again = 8});
  append("one\ntwo\nthree\nfour\n");
  poll(tail);
  cut_to(8);
  append("3+4\n");
  EXPECT_THAT(poll(tail), ElementsAre("two", "3+4"));
  EXPECT_THAT(poll(tail), IsEmpty());
}

TEST_F(FileTailTest, ALineThatWasCutWhileItGrewIsNotHandedOn) {
  FileTail tail(path());
  append("one\ntwo\nthree\n");
  poll(tail);
  cut_to(4);
  append("half of a line that");
  EXPECT_THAT(poll(tail), IsEmpty());
  append(" goes on\nfive\n");
  EXPECT_THAT(poll(tail), ElementsAre("five"));
}

TEST_F(FileTailTest, AnotherFileOfTheSameNameIsReadFromItsStart) {
  FileTail tail(path());
  append("one\ntwo\n");
  poll(tail);
  fs::rename(path(), folder_.path() / "old");
  append("three\nfour\nfive\n");
  EXPECT_THAT(poll(tail), ElementsAre("three", "four", "five"));
}

TEST_F(FileTailTest, OfALongFileTheStartAndTheEndAreRead) {
  FileTail tail(path(), {.head = 8, .most = 11, .again = 0});
  append("first\nsecond\nthird\nfourth\nfifth\nlast\n");
  EXPECT_THAT(poll(tail), ElementsAre("first", "second", "(skipped)", "fifth", "last"));
  append("a\nbcdefgh\nij\nklm\n");
  EXPECT_THAT(poll(tail), ElementsAre("(skipped)", "ij", "klm"));
}

// A rank whose dump the agent's own code bounds.
class GrowingDump {
 public:
  explicit GrowingDump(const fs::path& path, std::int64_t steps_in_full)
      : writer_(path, clock_), dump_(writer_, steps_in_full) {
    dump_.add_lines(header_line(0, 1));
  }
  void step(std::int64_t wall_ns) {
    profile::Record record{};
    record.kind = profile::RecordKind::kStep;
    record.batch = ++batch;
    record.step = {{{32}, 1, 0}, now_ns, wall_ns, {}};
    record.step.phases[static_cast<std::size_t>(Phase::kDataloaderNext)] = wall_ns / 4;
    record.step.phases[static_cast<std::size_t>(Phase::kForward)] = wall_ns - wall_ns / 4;
    dump_.add(record);
    now_ns += wall_ns;
  }
  void flush() { dump_.flush(); }

  std::int64_t batch = 0, now_ns = 1'000'000'000;

 private:
  SystemClock clock_;
  profile::DumpWriter writer_;
  profile::BoundedDump dump_;
};

class RankFeedTest : public testing::Test {
 protected:
  static std::optional<RecentSteps> recent(const RankFeed& feed) {
    return recent_steps(feed, recent_waits({&feed}), feed.last_step_end_ns());
  }
  fs::path path() const { return folder_.rank_dump(0); }
  RunFolder folder_;
};

TEST_F(RankFeedTest, FollowsADumpWhoseWindowsAreReplaced) {
  GrowingDump dump(path(), 200);
  RankFeed feed(0, path());
  for (int look = 0; look < 60; ++look) {
    const int steps = look % 3 == 0 ? 130 : look % 7;  // some looks see windows come and go, some see a few steps
    for (int i = 0; i < steps; ++i) dump.step(dump.batch % 50 == 49 ? 30'000'000 : 10'000'000);
    dump.flush();
    feed.poll();
    ASSERT_EQ(feed.last_batch(), dump.batch) << "look " << look;
    ASSERT_EQ(feed.last_step_end_ns(), dump.now_ns);
    const auto now = recent(feed);
    ASSERT_TRUE(now);
    EXPECT_NEAR(now->batches_per_s, 1 / 0.0104, 2) << "look " << look;
    EXPECT_NEAR(now->samples_per_s, 32 * now->batches_per_s, 0.01);
    EXPECT_NEAR(now->p50_s, 0.010, 0.0002);
    EXPECT_NEAR(now->shares[static_cast<std::size_t>(Activity::kLoading)], 0.25, 0.001);
    EXPECT_NEAR(now->shares[static_cast<std::size_t>(Activity::kComputing)], 0.75, 0.001);
    EXPECT_LE(feed.profile().steps.size() + feed.profile().windows.size(), 1'500u) << "only the last ten seconds stay";
  }
  EXPECT_GT(dump.batch, 2'500);
}

TEST_F(RankFeedTest, AFirstLookAtALongRunSeesItsWindowsWithTheirOutliers) {
  GrowingDump dump(path(), 200);
  while (dump.batch < 3'000) dump.step(dump.batch % 50 == 49 ? 30'000'000 : 10'000'000);
  dump.flush();
  RankFeed feed(0, path(), {.head = 1'000, .most = 100'000, .again = 0});
  feed.poll();
  EXPECT_EQ(feed.last_batch(), 3'000);
  EXPECT_THAT(feed.profile().windows, testing::Not(IsEmpty()));
  const auto now = recent(feed);
  ASSERT_TRUE(now);
  EXPECT_NEAR(now->batches_per_s, 1 / 0.0104, 2);
  EXPECT_NEAR(now->p50_s, 0.010, 0.0002) << "the outliers' own lines are not all there is";
  EXPECT_NEAR(now->p99_s, 0.030, 0.0006);
  EXPECT_GT(now->steps, 500);
}

TEST_F(RankFeedTest, KeepsTheLastStepsHoweverLongTheyTake) {
  GrowingDump dump(path(), 10'000);
  for (int i = 0; i < 50; ++i) dump.step(5'000'000'000);
  dump.flush();
  RankFeed feed(0, path());
  feed.poll();
  ASSERT_EQ(feed.profile().steps.size(), kFewestRecent);
  EXPECT_NEAR(recent(feed)->p50_s, 5, 0.001);
}

TEST_F(RankFeedTest, ARankThatStandsStillGetsSlower) {
  GrowingDump dump(path(), 10'000);
  for (int i = 0; i < 1'000; ++i) dump.step(10'000'000);
  dump.flush();
  RankFeed feed(0, path());
  feed.poll();
  const RecentWaits waits = recent_waits({&feed});
  const auto after = [&](std::int64_t seconds) {
    return recent_steps(feed, waits, feed.last_step_end_ns() + seconds * 1'000'000'000)->batches_per_s;
  };
  EXPECT_NEAR(after(0), 100, 0.5);
  EXPECT_NEAR(after(10), 50, 0.5);
  EXPECT_NEAR(after(90), 10, 0.2);
}

TEST_F(RankFeedTest, ALaterAttemptInTheSameFileBeginsAnew) {
  folder_.append("profile/rank-0000.jsonl", header_line(0, 2) + step_line(1, 100, 0, 0) + step_line(2, 114, 0, 0));
  RankFeed feed(0, path());
  feed.poll();
  EXPECT_EQ(feed.last_batch(), 2);
  folder_.append("profile/rank-0000.jsonl", kFinished + header_line(0, 2) + step_line(1, 50, 0, 0));
  feed.poll();
  EXPECT_EQ(feed.last_batch(), 1);
  EXPECT_FALSE(feed.profile().end);
  EXPECT_EQ(feed.profile().steps.size(), 1u);
}

TEST_F(RankFeedTest, TellsTheExchangeFromWaitingForTheLastRank) {
  std::string first = header_line(0, 2), second = header_line(1, 2);
  for (int batch = 1; batch <= 10; ++batch) {
    first += step_line(batch, 40 * batch, 0, 16);   // waits 16 of 30 ms
    second += step_line(batch, 40 * batch, 12, 4);  // loads for 12 ms, then the exchange takes 4
  }
  folder_.append("profile/rank-0000.jsonl", first);
  folder_.append("profile/rank-0001.jsonl", second);
  RankFeed a(0, folder_.rank_dump(0)), b(1, folder_.rank_dump(1));
  a.poll();
  b.poll();
  const RecentWaits waits = recent_waits({&a, &b});
  EXPECT_EQ(waits.compared_steps, 10);
  const auto shares = [&](const RankFeed& feed) { return recent_steps(feed, waits, feed.last_step_end_ns())->shares; };
  const auto at = [](Activity activity) { return static_cast<std::size_t>(activity); };
  EXPECT_NEAR(shares(a)[at(Activity::kExchange)], 4.0 / 30, 1e-9);
  EXPECT_NEAR(shares(a)[at(Activity::kWaiting)], 12.0 / 30, 1e-9);
  EXPECT_NEAR(shares(b)[at(Activity::kExchange)], 4.0 / 30, 1e-9);
  EXPECT_NEAR(shares(b)[at(Activity::kWaiting)], 0, 1e-9);
  EXPECT_NEAR(shares(b)[at(Activity::kLoading)], 12.0 / 30, 1e-9);
  const auto all = shares(a);
  EXPECT_NEAR(std::accumulate(all.begin(), all.end(), 0.0), 1, 1e-9);
  EXPECT_EQ(recent_steps(b, waits, 0)->came_last, 10);
  EXPECT_EQ(recent_steps(a, waits, 0)->came_last, 0);
}

}  // namespace
}  // namespace dtrain::analysis
