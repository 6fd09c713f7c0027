// A live view of run folders written by hand, and how it looks on screens of several sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/analysis/live.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "live/live_text.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class ManualClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now; }
  Nanoseconds now = std::chrono::seconds(1'772'366'400);  // 2026-03-01T12:00:00Z
};

std::string event(const char* time, const std::string& rest) {
  return fmt::format(R"({{"time":"2026-03-01T{}Z",{}}})"
                     "\n",
                     time, rest);
}

class LiveViewTest : public testing::Test {
 protected:
  // A run of two ranks that has begun a minute ago.
  void write_start() {
    folder_.append("plan.json", R"({"name":"net","world_size":2,"length":{"batches":1000,"batches_per_epoch":100}})");
    folder_.append("events.jsonl", event("11:59:00.000000", R"("event":"run_started")"));
    for (int rank = 0; rank < 2; ++rank) folder_.append(dump(rank), header_line(rank, 2));
    folder_.append("profile/agent-a.jsonl", R"({"record":"header","schema":1,"kind":"agent","host":"node","agent":"a",)"
                                            R"("clock":{"monotonic_ns":0,"wall_ns":0,"offset_ns":1772366390000000000},)"
                                            R"("machine":{"total_memory":8589934592}})"
                                            "\n"
                                            R"({"record":"gpu","index":0,"name":"H200","total_memory":1073741824})"
                                            "\n");
  }
  // `to_ms`: on the host's clock.
  void write_steps(int rank, int from, int to, int data_ms = 4, int wait_ms = 2) {
    std::string lines;
    for (int batch = from; batch <= to; ++batch) lines += step_line(batch, 20 * batch, data_ms, wait_ms);
    folder_.append(dump(rank), lines);
  }
  void write_sample(int time_ms) {
    folder_.append("profile/agent-a.jsonl",
                   fmt::format(R"({{"record":"system","time_ns":{}000000,"interval_ns":500000000,)"
                               R"("net_throughput_sent":1048576,"net_throughput_recv":0,"disk_iops":12.5,)"
                               R"("free_memory":4294967296,"cpu_util_simple":61.4,"io_wait":2.0,)"
                               R"("cpu_util_per_core":[100.0,5.0,42.0],"gpus":[{{"index":0,"gpu_util":93,)"
                               R"("gpu_free_memory":536870912,"gpu_temperature":71,"gpu_foreign_processes":2,)"
                               R"("gpu_thermal_throttle":1}}],"processes":[{{"rank":0,"pid":7,)"
                               R"("resident_memory":104857600,"cpu_util":98.0,"cpu_wait":3.0}}]}})"
                               "\n",
                               time_ms));
  }
  static fs::path dump(int rank) { return fmt::format("profile/rank-{:04}.jsonl", rank); }
  LiveView look() {
    run_.poll();
    return run_.view();
  }
  RunFolder folder_;
  ManualClock clock_;
  LiveRun run_{folder_.path(), clock_};
};

TEST_F(LiveViewTest, AFolderThatHoldsNothingYetIsARunThatStarts) {
  const LiveView view = look();
  EXPECT_EQ(view.state, "starting");
  EXPECT_FALSE(view.ended);
  EXPECT_THAT(view.ranks, SizeIs(0));
  EXPECT_THAT(render_live(view, {}), SizeIs(2));
}

TEST_F(LiveViewTest, WhatIsWrittenIsSeenAtTheNextLook) {
  folder_.append("events.jsonl", event("11:58:00.000000", R"("event":"queued","reason":"2 slots are taken")"));
  EXPECT_EQ(look().state, "queued");
  EXPECT_EQ(look().cause, "2 slots are taken");
  write_start();
  LiveView view = look();
  EXPECT_EQ(view.state, "starting");
  EXPECT_EQ(view.cause, "");
  ASSERT_EQ(view.ranks.size(), 2u);
  EXPECT_FALSE(view.ranks[0].recent);
  EXPECT_THAT(render_live(view, {}), Contains(HasSubstr("no batch yet")));

  write_steps(0, 1, 100);
  write_steps(1, 1, 99);
  write_sample(2'500);
  folder_.append("metrics.jsonl", R"({"kind":"training","batch":100,"metrics":{"acc":0.5,"loss":0.25}})"
                                  "\n");
  view = look();
  EXPECT_EQ(view.state, "running");
  EXPECT_EQ(view.name, "net");
  EXPECT_EQ(view.batch, 100);
  EXPECT_EQ(view.total_batches, 1000);
  EXPECT_EQ(view.elapsed_s, 60);
  EXPECT_EQ(view.training.values.at("loss"), 0.25);
  EXPECT_EQ(view.ranks[1].batch, 99);
  EXPECT_EQ(view.ranks[0].resident_bytes, 100 << 20);
  EXPECT_EQ(view.ranks[0].cpu_percent, 98);
  EXPECT_FALSE(view.ranks[1].resident_bytes);
  ASSERT_TRUE(view.ranks[0].recent);
  EXPECT_NEAR(view.ranks[0].recent->p50_s, 0.020, 1e-9);
  EXPECT_NEAR(view.samples_per_s, 2 * 10 / 0.020, 1);

  EXPECT_EQ(view.mfu, std::nullopt);  // nothing was counted
  const std::string counted = R"({"name":"net","world_size":2,"length":{"batches":1000,"batches_per_epoch":100},)"
                              R"("flops":{"per_sample":2e6,"dtype":"float32","device":"cpu"})";
  write_file_atomic(folder_.path() / "plan.json", counted + "}");
  fs::last_write_time(folder_.path() / "plan.json", fs::file_time_type::clock::now() + std::chrono::seconds(2));
  view = look();
  EXPECT_NEAR(*view.achieved_gflops, view.samples_per_s * 2e6 / 1e9, 1e-9);
  EXPECT_EQ(view.mfu, std::nullopt);  // no limit is known
  write_file_atomic(folder_.path() / "plan.json", counted + R"(,"limits":{"node":{"gflops":{"float32":4}}}})");
  fs::last_write_time(folder_.path() / "plan.json", fs::file_time_type::clock::now() + std::chrono::seconds(4));
  view = look();
  EXPECT_NEAR(*view.mfu, *view.achieved_gflops / 8, 1e-9);
  EXPECT_EQ(to_json(view)["mfu"], *view.mfu);
  EXPECT_THAT(render_live(view, {.width = 160}), Contains(HasSubstr("MFU " + format_percent(*view.mfu))));
  const std::string on_gpus = R"({"name":"net","world_size":2,"length":{"batches":1000,"batches_per_epoch":100},)"
                              R"("flops":{"per_sample":2e6,"dtype":"float32","device":"cuda"},)"
                              R"("limits":{"node":{"gflops":{"float32":4}}},)"
                              R"("gpu_limits":{"node":[{"gpu":"Card","gflops":{"float32":8,"tf32":16}}]}})";
  write_file_atomic(folder_.path() / "plan.json", on_gpus);
  fs::last_write_time(folder_.path() / "plan.json", fs::file_time_type::clock::now() + std::chrono::seconds(6));
  view = look();
  EXPECT_NEAR(*view.mfu, *view.achieved_gflops / 32, 1e-9);

  folder_.append("metrics.jsonl", R"({"kind":"training","batch":110,"metrics":{"loss":"nan"}})"
                                  "\n");
  EXPECT_EQ(to_json(look())["training"]["metrics"]["loss"], "nan");
  EXPECT_THAT(render_live(look(), {}), Contains(HasSubstr("loss nan")));

  write_steps(0, 101, 150);
  folder_.append(dump(2), header_line(2, 3));
  view = look();
  EXPECT_EQ(view.batch, 150);
  EXPECT_EQ(view.ranks.size(), 3u) << "a rank that comes later";
}

TEST_F(LiveViewTest, TheLossAndTheMetricOfValidationsAreSmallCurves) {
  folder_.append("plan.json", R"({"name":"net","world_size":1,"experiment":{"searcher":{"metric":"acc"}}})");
  const auto line = [&](const char* kind, int batch, const char* metrics) {
    folder_.append("metrics.jsonl", fmt::format(R"({{"kind":"{}","batch":{},"metrics":{}}})"
                                                "\n",
                                                kind, batch, metrics));
  };
  line("training", 10, R"({"loss":4,"acc":0.1})");
  EXPECT_THAT(render_live(look(), {}), Not(Contains(HasSubstr("training loss")))) << "one value is no curve";
  for (int batch = 20; batch <= 80; batch += 10) {
    line("training", batch, fmt::format(R"({{"loss":{}}})", 4.0 - batch / 20.0).c_str());
    if (batch == 40) line("validation", batch, R"({"acc":0.5,"loss":9})");
  }
  line("validation", 80, R"({"acc":0.75,"loss":8})");
  const LiveView view = look();
  ASSERT_THAT(view.curves, SizeIs(2));
  EXPECT_THAT(view.curves[0].points, SizeIs(8));
  const std::vector<std::string> lines = render_live(view, {});
  EXPECT_THAT(
      lines, Contains(testing::AllOf(HasSubstr("training loss"), HasSubstr("█"), HasSubstr("▁"), HasSubstr("0 to 4"))));
  EXPECT_THAT(lines, Contains(testing::AllOf(HasSubstr("validation acc"), HasSubstr("0.5 to 0.75"))));
  EXPECT_THAT(render_live(view, {.width = 40}), Not(Contains(HasSubstr("training loss")))) << "no room";
  const Json json = to_json(view)["curves"];
  EXPECT_EQ(json[1], Json({{"kind", "validation"}, {"name", "acc"}, {"batches", {40, 80}}, {"values", {0.5, 0.75}}}));

  // A restart cuts the file.
  fs::resize_file(folder_.path() / "metrics.jsonl", 0);
  line("training", 10, R"({"loss":4})");
  line("training", 20, R"({"loss":1})");
  EXPECT_THAT(look().curves[0].points, SizeIs(2));
}

TEST(LiveCurves, AColumnHasTheMeanOfItsPoints) {
  const auto point = [](std::int64_t batch, double value) {
    return CurvePoint{.batch = batch, .mean = value, .low = value, .high = value, .finite = 1};
  };
  const std::vector<CurvePoint> falling = {point(0, 8), point(25, 5), point(50, 4), point(100, 1)};
  EXPECT_EQ(draw_curve(falling, 4), "█▅▄▁");
  EXPECT_EQ(draw_curve(falling, 8), "██▅▅▄▄▄▁") << "between two points it goes on with the value before";
  EXPECT_EQ(draw_curve(std::vector{point(0, 1), point(1, 1)}, 3), "▅▅▅");
  CurvePoint nan = point(50, std::nan(""));
  nan.finite = 0;
  nan.non_finite = 1;
  EXPECT_EQ(draw_curve(std::vector{point(0, 1), nan, point(100, 2)}, 4), "▁▁x█");
  EXPECT_EQ(draw_curve(std::vector{nan}, 2), "xx");
  EXPECT_EQ(draw_curve({}, 4), "");
}

TEST_F(LiveViewTest, TheTimeLeftIsThatOfTheLoopSoFar) {
  write_start();
  folder_.append(dump(0), part_line("initialization", 0, 20));  // 100 batches take 2 s and no more
  write_steps(0, 1, 100);
  EXPECT_NEAR(look().left_s.value(), 9 * 2.0, 1e-6);
}

// Its steps take 20 ms each, whatever was done before.
TEST_F(LiveViewTest, TheTimeLeftAfterAContinuationIsThatOfThisAttemptsBatches) {
  write_start();
  folder_.append(dump(0), part_line("initialization", 0, 20 * 901));
  write_steps(0, 901, 910);
  const LiveView view = look();
  EXPECT_EQ(view.batch, 910);
  EXPECT_NEAR(view.left_s.value(), 90 * 0.020, 0.003);
}

TEST_F(LiveViewTest, RecoveriesAndTheUsefulTimeAreShown) {
  write_start();
  write_steps(0, 1, 5);
  EXPECT_THAT(join(render_live(look(), {}), "\n"), Not(HasSubstr("recovered")));
  folder_.append("events.jsonl",
                 R"({"time":"2026-03-01T12:00:00Z","event":"attempt_started","attempt":1}
{"time":"2026-03-01T12:00:00Z","event":"attempt_failed","attempt":1,"step":47,"cause":"rank 1 was killed"}
{"time":"2026-03-01T12:00:01Z","event":"attempt_started","attempt":2,"step":40}
{"time":"2026-03-01T12:00:02Z","event":"recovered","attempt":2,"batches_again":7,"seconds":2,"lost_s":2}
{"time":"2026-03-01T12:00:20Z","event":"run_ended","state":"done","exit_code":0}
)");
  const LiveView view = look();
  EXPECT_EQ(to_json(view)["recoveries"], 1);
  EXPECT_EQ(to_json(view)["batches_again"], 7);
  EXPECT_NEAR(to_json(view)["useful_share"].get<double>(), 0.9, 0.06);
  EXPECT_THAT(join(render_live(view, {}), "\n"), HasSubstr("attempt 2, recovered 1 time, 7 batches again; "));
}

TEST_F(LiveViewTest, TheLimitOfACgroupIsShownWhereItIsFullerThanTheHost) {
  write_start();
  const auto sample = [&](int time_ms, const char* free) {
    folder_.append(
        "profile/agent-a.jsonl",
        fmt::format(R"({{"record":"system","time_ns":{}000000,"interval_ns":500000000,"free_memory":4294967296,)"
                    R"("cgroup_free_memory":{},"cgroup_memory_limit":1073741824,)"
                    R"("cpu_throttled_periods":97.0,"cpu_throttled_time":50.0,"processes":[]}})"
                    "\n",
                    time_ms, free));
  };
  sample(2'000, "1073741000");
  EXPECT_EQ(look().hosts.front().total_bytes, 8589934592) << "the cgroup has more left of its limit";
  sample(2'500, "107374182");
  const LiveView view = look();
  EXPECT_EQ(view.hosts.front().total_bytes, 1073741824);
  EXPECT_EQ(to_json(view)["hosts"][0]["memory_of"], "a cgroup");
  EXPECT_EQ(to_json(view)["hosts"][0]["throttled_percent"], 97);
  const std::string text = join(render_live(view, {}), "\n");
  EXPECT_THAT(text, HasSubstr("921.6 MiB of 1.0 GiB"));
  EXPECT_THAT(text, HasSubstr("memory: the limit of a cgroup; CPU quota used up in 97% of its periods"));
}

TEST_F(LiveViewTest, HostsAreWhatTheirLastSampleSays) {
  write_start();
  write_sample(2'000);
  write_sample(2'500);
  const LiveView view = look();
  ASSERT_EQ(view.hosts.size(), 1u);
  const LiveHost& host = view.hosts[0];
  EXPECT_NEAR(host.age_s, 7.5, 1e-3);
  EXPECT_EQ(host.cpu_percent, 61.4);
  EXPECT_EQ(host.total_bytes, 8.0 * (1 << 30));
  EXPECT_FALSE(host.disk_read) << "not recorded";
  ASSERT_EQ(host.gpus.size(), 1u);
  EXPECT_EQ(host.gpus[0].name, "H200");
  EXPECT_TRUE(host.gpus[0].throttled);
  const std::string text = join(render_live(view, {.width = 160}), "\n");
  EXPECT_THAT(text, HasSubstr("61%"));
  EXPECT_THAT(text, HasSubstr("4.0 GiB of 8.0 GiB"));
  EXPECT_THAT(text, HasSubstr("cores 904"));
  EXPECT_THAT(text, HasSubstr("7.50 s ago"));
  EXPECT_THAT(text, HasSubstr("GPU 0 H200  93%  memory 512.0 MiB of 1.0 GiB  71 C  slowed by heat  2 other processes"));
}

TEST_F(LiveViewTest, ARankThatStandsStillIsShown) {
  write_start();
  write_steps(0, 1, 50);
  write_steps(1, 1, 50);
  write_sample(31'020);
  const LiveView view = look();
  EXPECT_NEAR(view.ranks[0].silent_s, 30, 1e-6);
  EXPECT_THAT(render_live(view, {}), Contains(HasSubstr("no batch for 30.0 s")));
  EXPECT_LT(view.samples_per_s, 40) << "and the speed falls";
}

TEST_F(LiveViewTest, HostsHaveClocksOfTheirOwn) {
  write_start();
  write_steps(0, 1, 50);
  folder_.append(dump(2), R"({"record":"header","schema":1,"kind":"rank","rank":2,"host":"other","agent":"b"})"
                          "\n");
  std::string lines;
  for (int batch = 1; batch <= 50; ++batch) lines += step_line(batch, 500'000'000 + 20 * batch, 4, 2);
  folder_.append(dump(2), lines);
  const LiveView view = look();
  EXPECT_EQ(view.compared_steps, 50);
  for (const std::size_t rank : {0, 2}) {
    EXPECT_EQ(view.ranks[rank].silent_s, 0);
    EXPECT_NEAR(view.ranks[rank].recent->samples_per_s, 500, 1);
  }
  EXPECT_THAT(render_live(view, {.width = 160}), Contains(HasSubstr("on 2 hosts")));
}

TEST_F(LiveViewTest, TheLastCheckpointAndTheOneBeingWrittenAreSeen) {
  write_start();
  EXPECT_EQ(to_json(look()).at("checkpoint").at("step"), Json());
  folder_.append("events.jsonl", event("11:59:48.000000", R"("event":"checkpoint_saved","step":120,"bytes":2048)"));
  fs::create_directories(folder_.path() / "checkpoints" / ".partial-step-140");
  LiveView view = look();
  EXPECT_EQ(view.checkpoint.step, 120);
  EXPECT_EQ(view.checkpoint.age_s, 12);
  EXPECT_EQ(view.checkpoint.saving, 140);
  EXPECT_THAT(render_live(view, {}),
              Contains(HasSubstr("checkpoint of batch 120, 12.0 s ago, 2.0 KiB; saving that of batch 140 now")));
  folder_.append("events.jsonl", event("11:59:49.000000",
                                       R"("event":"checkpoint_failed","step":140,"cause":"no space","retried":true)"));
  EXPECT_THAT(render_live(look(), {.width = 160}),
              Contains(HasSubstr("batch 140 failed and was tried again: no space")));
  folder_.append("events.jsonl", event("11:59:50.000000", R"("event":"run_ended","state":"interrupted")"));
  view = look();
  EXPECT_FALSE(view.checkpoint.saving) << "its saver was killed";
  EXPECT_TRUE(view.ended);
  folder_.append("events.jsonl", event("11:59:51.000000", R"("event":"submitted")"));
  EXPECT_FALSE(look().ended) << "it is continued";
}

TEST_F(LiveViewTest, TheEndIsSeen) {
  write_start();
  write_steps(0, 1, 50);
  write_steps(1, 1, 50);
  folder_.append(dump(0), kFinished);
  folder_.append("events.jsonl",
                 event("11:59:30.500000", R"("event":"run_ended","state":"failed","cause":"rank 1 died")"));
  write_sample(60'000);
  const LiveView view = look();
  EXPECT_TRUE(view.ended);
  EXPECT_EQ(view.state, "failed");
  EXPECT_EQ(view.elapsed_s, 30.5);
  EXPECT_EQ(view.ranks[0].ended, "finished");
  EXPECT_NEAR(view.samples_per_s, 1000, 1) << "of the steps there were";
  EXPECT_FALSE(view.left_s);
  const std::string text = join(render_live(view, {}), "\n");
  EXPECT_THAT(text, HasSubstr("failed after 30.5 s"));
  EXPECT_THAT(text, HasSubstr("rank 1 died"));
  EXPECT_THAT(text, HasSubstr("  finished"));
}

TEST_F(LiveViewTest, ARunWhoseProcessesAreGoneIsOver) {
  write_start();
  run_.poll();
  const LiveView view = run_.view(true);
  EXPECT_TRUE(view.ended);
  EXPECT_EQ(view.state, "gone");
}

TEST_F(LiveViewTest, MissingRanksAndRecordsAreSaid) {
  folder_.append("plan.json", R"({"name":"net","world_size":3})");
  folder_.append(dump(0), header_line(0, 3) + R"({"record":"dropped","count":4})"
                                              "\n");
  folder_.append(dump(1), R"({"record":"header","schema":99,"rank":1})"
                          "\n");
  EXPECT_THAT(look().notes, testing::ElementsAre("1 of its dumps cannot be shown: a later version of dtrain wrote them",
                                                 "1 of 3 ranks have no dump in this folder (yet)",
                                                 "records are missing from dumps: 1 of them"));
}

TEST_F(LiveViewTest, TheJsonHasItAll) {
  write_start();
  write_steps(0, 1, 20);
  write_steps(1, 1, 20);
  write_sample(500);
  const Json json = Json::parse(to_line(to_json(look())));
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["total_batches"], 1000);
  EXPECT_EQ(json["left_s"], Json());
  const Json& rank = json["ranks"][0];
  EXPECT_EQ(rank["recent"]["steps"], 20);
  double sum = 0;
  for (const auto& [name, share] : rank["recent"]["shares"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_NEAR(rank["recent"]["phases"]["train_batch"].get<double>(), 11.0 / 20, 1e-9);
  EXPECT_EQ(json["hosts"][0]["core_percent"], Json({100.0, 5.0, 42.0}));
}

// Columns of a line without its colours.
int width_of(const std::string& line) {
  std::string plain;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else {
      plain += line[i];
    }
  }
  return columns_of(plain);
}

class LiveScreenTest : public testing::Test {
 protected:
  LiveScreenTest() {
    view_.name =
        "gr\xc3\xb6\xc3\x9f"
        "enwahn";
    view_.state = "running";
    view_.world_size = 64;
    view_.batch = 1234;
    view_.total_batches = 9380;
    view_.batches_per_epoch = 938;
    view_.samples_per_s = 12345;
    view_.left_s = 65;
    view_.compared_steps = 100;
    view_.training = {1200, {{"accuracy", 0.5}, {"loss", 2.25}}};
    view_.notes = {"a note that is long enough not to fit on a narrow screen, whatever is said in it"};
    for (int i = 0; i < 64; ++i) {
      LiveRank rank;
      rank.rank = i;
      rank.host = "node-" + std::to_string(i / 8);
      rank.agent = rank.host;
      rank.batch = 1234;
      rank.recent = RecentSteps{.steps = 100, .p50_s = 0.0123, .p99_s = 0.015, .samples_per_s = 190};
      rank.recent->shares = {0.1, 0.5, 0.1, 0.15, 0.1, 0.05};
      rank.recent->came_last = i == 17 ? 90 : 0;
      rank.resident_bytes = 1.5e9;
      rank.cpu_percent = 99;
      view_.ranks.push_back(rank);
    }
    for (int i = 0; i < 8; ++i) {
      LiveHost host;
      host.host = "node-" + std::to_string(i);
      host.cpu_percent = 93;
      host.core_percent.assign(128, 95);
      view_.hosts.push_back(host);
    }
  }
  LiveView view_;
};

TEST_F(LiveScreenTest, NoLineIsTooLongAndNoScreenTooShort) {
  for (const bool color : {false, true}) {
    for (const int width : {1, 7, 20, 40, 79, 99, 132, 200}) {
      for (const int height : {1, 2, 5, 10, 24, 50, 200}) {
        const auto lines = render_live(view_, {.width = width, .height = height, .color = color});
        EXPECT_LE(std::ssize(lines), height) << width << " x " << height;
        for (const std::string& line : lines) {
          EXPECT_LE(width_of(line), width) << line;
          EXPECT_TRUE(is_valid_utf8(line)) << line;
          if (!color) {
            EXPECT_THAT(line, Not(HasSubstr("\x1b")));
          }
        }
      }
    }
  }
}

TEST_F(LiveScreenTest, AScreenIsUsedWhereThereIsMore) {
  EXPECT_THAT(render_live(view_, {.width = 99, .height = 6}), Contains(testing::StartsWith("   0  node-0")));
  for (const int height : {12, 24, 50}) {
    EXPECT_EQ(std::ssize(render_live(view_, {.width = 99, .height = height})), height);
  }
  EXPECT_GT(render_live(view_, {.width = 99}).size(), 64u + 16u) << "without a height all is there";
}

TEST_F(LiveScreenTest, ANarrowScreenKeepsWhatMattersMost) {
  const auto title = [&](int width) {
    for (const std::string& line : render_live(view_, {.width = width})) {
      if (line.find("batch p50") != std::string::npos) return line;
    }
    return std::string();
  };
  EXPECT_THAT(title(45), HasSubstr("load   comp   exch   wait"));
  EXPECT_THAT(title(45), Not(HasSubstr("memory")));
  EXPECT_THAT(title(79), HasSubstr("memory"));
  EXPECT_THAT(title(79), HasSubstr("last"));
  for (const char* column : {"host", "batch", "p99", "samples/s", "load", "optim", "other", "memory", "CPU"}) {
    EXPECT_THAT(title(160), HasSubstr(column));
  }
}

TEST_F(LiveScreenTest, TheBarIsWhatTheSharesAre) {
  const auto lines = render_live(view_, {.width = 200});
  EXPECT_THAT(lines, Contains(HasSubstr("llllcccccccccccccccccccceeeewwwwwwoooo..")));
}

TEST_F(LiveScreenTest, TheListOfRanksMoves) {
  const auto text = [&](int first) {
    return join(render_live(view_, {.width = 99, .height = 24, .first_rank = first}), "\n");
  };
  EXPECT_THAT(text(0), HasSubstr("ranks 0 to "));
  EXPECT_THAT(text(10), HasSubstr("ranks 10 to "));
  EXPECT_THAT(text(1000), HasSubstr(" to 63 of 64"));
  EXPECT_THAT(text(-5), HasSubstr("ranks 0 to "));
}

TEST_F(LiveScreenTest, WhatComesFromFilesCannotMoveTheCursor) {
  view_.name =
      "evil\x1b[2J\r\n\xc2\x9b"
      "2J\xff";
  view_.notes = {"a\tb\x7f"};
  const auto lines = render_live(view_, {.width = 100});
  EXPECT_THAT(lines[0], testing::StartsWith("evil?[2J???2J?  running"));
  EXPECT_THAT(lines, Contains("a?b?"));
}

}  // namespace
}  // namespace dtrain::analysis
