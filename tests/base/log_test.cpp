#include "dtrain/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain {
namespace {

TEST(Log, LinesHaveTimeLevelAndText) {
  testing::internal::CaptureStderr();
  const Logger log = make_stderr_logger("info");
  log->debug("hidden");
  log->info("first {}", 1);
  log->warn("second");
  log->error("third");
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string time = "[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9]";
  EXPECT_THAT(text,
              testing::MatchesRegex(time + " info  first 1\n" + time + " warn  second\n" + time + " error third\n"));
}

TEST(Log, LevelsAreChecked) {
  EXPECT_THROW(make_stderr_logger("loud"), ConfigError);
  testing::internal::CaptureStderr();
  make_stderr_logger("off")->error("hidden");
  make_null_logger()->error("hidden");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace dtrain
