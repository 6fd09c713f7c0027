// A program that links config and not analysis, which registers the rules: it reads no experiment without them.
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/config/experiment.h"

namespace dtrain::config {
namespace {

TEST(NoRules, AnExperimentIsAnErrorThatNamesTheLibrary) {
  EXPECT_THAT([] { Experiment(); }, testing::ThrowsMessage<std::logic_error>(
                                        testing::HasSubstr("this program has not loaded libdtrain_analysis.so")));
}

}  // namespace
}  // namespace dtrain::config
