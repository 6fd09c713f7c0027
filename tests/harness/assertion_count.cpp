// Prints how many assertions a test program has executed when it ends: scripts/test_results.py adds them up, so that a
// suite which became quicker by testing less is seen. Linked into every program of dtrain_test().
#include "harness/assertion_count.h"

#include <cstdio>

namespace {

class PrintedCount : public testing::EmptyTestEventListener {
  void OnTestProgramEnd(const testing::UnitTest&) override {
    std::printf("assertions: %lld\n", static_cast<long long>(dtrain::test::assertions_executed.load()));
  }
};

[[maybe_unused]] const bool kPrinted = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new PrintedCount);  // which owns it
  return true;
}();

}  // namespace
