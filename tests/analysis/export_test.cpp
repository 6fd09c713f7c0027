// What goes to other programs: values that are not finite stay what they are, and pauses are no training.
#include "dtrain/analysis/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/report.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/profile/event_file.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// The values of a tag in TensorBoard's event files under `folder`: in a record the tag stands before its 32-bit value.
std::vector<float> event_values(const fs::path& folder, const std::string& tag) {
  std::vector<float> values;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string bytes = read_file(entry.path());
    for (std::size_t at = 0; (at = bytes.find(tag + "\x15", at)) != std::string::npos;) {
      at += tag.size() + 1;
      float value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      values.push_back(value);
    }
  }
  return values;
}

void write_metrics(RunFolder& folder) {
  folder.append("plan.json", R"({"name":"x","world_size":1})");
  folder.append(folder.rank_dump(0), header_line(0, 1) + step_line(1, 0, 1, 2) + kFinished);
  folder.append("metrics.jsonl", R"({"kind":"training","batch":1,"metrics":{"loss":0.5,"accuracy":0.1}})"
                                 "\n"
                                 R"({"kind":"training","batch":2,"metrics":{"loss":"inf","accuracy":0.1}})"
                                 "\n"
                                 R"({"kind":"training","batch":3,"metrics":{"loss":"nan","accuracy":0.1}})"
                                 "\n"
                                 R"({"kind":"validation","batch":3,"metrics":{"loss":"nan","best":"-inf"}})"
                                 "\n");
}

TEST(Export, MetricsThatAreNotFiniteAreInEveryTable) {
  RunFolder folder;
  write_metrics(folder);
  const RunProfile run = load_run(folder.path());
  export_csv(run, folder.path() / "csv");
  const std::string csv = read_file(folder.path() / "csv" / "metrics.csv");
  EXPECT_THAT(csv, HasSubstr(",training,2,0,0,loss,inf"));
  EXPECT_THAT(csv, HasSubstr(",training,3,0,0,loss,nan"));
  EXPECT_THAT(csv, HasSubstr(",validation,3,0,0,best,-inf"));
  std::vector<std::string> losses;  // as SQLite gets them
  for (const Table& table : run_tables()) {
    if (table.name != "metrics") continue;
    table.rows(run, [&](const std::vector<Cell>& row) {
      if (const auto* text = std::get_if<std::string>(&row.back())) losses.push_back(*text);
    });
  }
  EXPECT_THAT(losses, Contains("nan"));
  EXPECT_THAT(losses, Contains("inf"));
}

TEST(Export, MetricsThatAreNotFiniteAreInTensorBoard) {
  RunFolder folder;
  write_metrics(folder);
  export_tensorboard(load_run(folder.path()), folder.path() / "tensorboard");
  const std::vector<float> losses = event_values(folder.path() / "tensorboard", "training/loss");
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_EQ(losses[0], 0.5f);
  EXPECT_TRUE(std::isinf(losses[1]));
  EXPECT_TRUE(std::isnan(losses[2]));
}

TEST(Export, MetricsThatAreNotFiniteAreInTheReport) {
  RunFolder folder;
  write_metrics(folder);
  write_file_atomic(
      folder.path() / "plan.json",
      R"({"world_size":1,"non_finite":{"batches":7,"first_batch":3,"text":"7 batches were not finite"}})");
  const RunProfile run = load_run(folder.path());
  const std::string html = render_report(run, analyze(run));
  EXPECT_THAT(html, HasSubstr("validation loss after batch 3"));
  EXPECT_THAT(html, HasSubstr(">nan<"));
  EXPECT_THAT(html, HasSubstr("7 batches were not finite"));
  EXPECT_THAT(html, HasSubstr(R"("loss":"nan")"));
}

// The number of whole records of an event file; -1 if there is more behind them.
int records_in(const fs::path& file) {
  const std::string bytes = read_file(file);
  int records = 0;
  std::size_t at = 0;
  while (at + 12 <= bytes.size()) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    if (length > bytes.size() - at - 12 || at + length + 16 > bytes.size()) break;
    at += length + 16;
    ++records;
  }
  return at == bytes.size() ? records : -1;
}

TEST(Export, ARunsEventFilesAreNotReplaced) {
  RunFolder folder;
  const fs::path events = folder.path() / "tensorboard" / "metrics";
  for (int attempt = 0; attempt < 3; ++attempt) {
    profile::EventFile file = profile::EventFile::for_run(events, 1000.25);  // all in the same second
    file.add(1000.5, attempt, {{"training/loss", attempt}});
  }
  const auto files = profile::event_files_of_run(events);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_LT(files[0].filename().string(), files[1].filename().string());
  for (const fs::path& file : files) EXPECT_EQ(records_in(file), 2) << file;
  write_metrics(folder);
  export_tensorboard(load_run(folder.path()), folder.path() / "tensorboard");
  EXPECT_EQ(profile::event_files_of_run(events), files);
  EXPECT_THAT(event_values(folder.path() / "tensorboard", "training/loss"), testing::UnorderedElementsAre(0, 1, 2));
}

TEST(Export, AFullDiskLeavesWholeEvents) {
  RunFolder folder;
  profile::EventFile file = profile::EventFile::for_run(folder.path() / "events", 1000);
  const auto write = [&] { file.add(1000, 1, {{"a metric with a long name", 1}}); };
  write();
  const auto before = fs::file_size(file.path());
  // The next event does not fit whole.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{.rlim_cur = before + 20, .rlim_max = old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write(), SystemError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(fs::file_size(file.path()), before);
  write();
  EXPECT_EQ(records_in(file.path()), 3);
}

TEST(Export, ScopesAreInTablesAndTensorBoard) {
  RunFolder folder;
  folder.append(folder.rank_dump(0), header_line(0, 1) +
                                         scope_line(1, "a/b", 2, R"("train_batch":3000000,"other":4000000)") +
                                         step_line(1, 0, 1, 2) + scope_line(2, "a/b", 1, R"("train_batch":1000000)") +
                                         step_line(2, 17, 1, 2) + kFinished);
  const RunProfile run = load_run(folder.path());
  export_csv(run, folder.path() / "csv");
  EXPECT_EQ(read_file(folder.path() / "csv" / "scopes.csv"),
            "rank,batch,scope,calls,wall_ns,phase\n0,1,a/b,2,7000000,other\n0,2,a/b,1,1000000,train_batch\n");
  EXPECT_THAT(read_file(folder.path() / "csv" / "scope_totals.csv"), HasSubstr("\n0,a/b,2,3,8000000,0,0,4000000,"));
  export_tensorboard(run, folder.path() / "tensorboard");
  EXPECT_THAT(event_values(folder.path() / "tensorboard", "scopes_ms/a/b"), ElementsAre(7, 1));
}

TEST(Export, ThroughputOfABatchLeavesOutTheValidationBehindIt) {
  RunFolder folder;
  std::string last = step_line(2, 17, 1, 2);  // 17 ms of training, 10 samples; then a second of validation
  const auto replace = [&](const std::string& from, const std::string& to) {
    last.replace(last.find(from), from.size(), to);
  };
  replace("\"wall_ns\":17000000", "\"wall_ns\":1017000000");
  replace("\"validation\":0", "\"validation\":1000000000");
  folder.append(folder.rank_dump(0), header_line(0, 1) + step_line(1, 0, 1, 2) + last + kFinished);
  export_tensorboard(load_run(folder.path()), folder.path() / "tensorboard");
  const float rate = 10 / 0.017f;
  EXPECT_THAT(event_values(folder.path() / "tensorboard", "step/samples_per_s"),
              ElementsAre(testing::FloatNear(rate, 0.1f), testing::FloatNear(rate, 0.1f)));
}

}  // namespace
}  // namespace dtrain::analysis
