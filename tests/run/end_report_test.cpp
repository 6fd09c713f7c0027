#include "launch/run_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../harness/temporary_folder.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class EndReportOf : public testing::Test {
 protected:
  EndReportOf() { fs::create_directories(folder_ / "profile"); }

  void write_dump() {
    std::ofstream(folder_ / "profile" / "rank-0000.jsonl")
        << R"({"record":"header","schema":1,"kind":"rank","rank":0,"world_size":1,"host":"node","agent":"a"})"
        << "\n";
  }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(EndReportOf, ARunWithDumpsIsWrittenAndNamed) {
  write_dump();
  const rank::EndReport report = end_report(folder_);
  EXPECT_EQ(report.text, "report      " + (folder_ / "report.html").string() + "\n");
  EXPECT_THAT(report.warning, IsEmpty());
  EXPECT_GT(fs::file_size(folder_ / "report.html"), 200'000u);
}

TEST_F(EndReportOf, ARunWithoutDumpsIsNothing) {
  const rank::EndReport report = end_report(folder_);
  EXPECT_THAT(report.text, IsEmpty());
  EXPECT_THAT(report.warning, IsEmpty());
}

TEST_F(EndReportOf, WhatCannotBeWrittenIsAWarning) {
  write_dump();
  fs::create_directories(folder_ / "report.html" / "in the way");
  const rank::EndReport report = end_report(folder_);
  EXPECT_THAT(report.text, IsEmpty());
  EXPECT_THAT(report.warning, HasSubstr("dtrain: warning: there is no report of the run: "));
  EXPECT_THAT(report.warning, HasSubstr("report.html"));
}

TEST_F(EndReportOf, LongDumpsAreLeftToTheCommand) {
  write_dump();
  fs::resize_file(folder_ / "profile" / "rank-0000.jsonl", 200'000'000);  // a hole: nothing is written
  const rank::EndReport report = end_report(folder_);
  EXPECT_THAT(report.text, HasSubstr("'dtrain report " + folder_.string() + "' writes it"));
  EXPECT_THAT(report.warning, IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "report.html"));
}

}  // namespace
}  // namespace dtrain::launcher
