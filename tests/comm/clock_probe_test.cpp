// Clocks that really differ: two that a test sets by hand, with ways of any length between them.
#include "control/protocol.h"

#include <gtest/gtest.h>

#include <random>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

using Time = ClockProbe::Time;

struct TwoHosts {
  Time now{1'000'000};  // rank 0's clock is the truth
  Time ahead{0};        // by how much rank 0's is ahead of the other
  Time here() const { return now - ahead; }
};

// Round trips whose ways take what `way` returns.
template <typename Way>
ClockOffset measure(TwoHosts& hosts, const Way& way) {
  ClockProbe probe;
  probe.start();
  for (;;) {
    const Json question = probe.question(hosts.here());
    hosts.now += Time(way());
    const Json answer = clock_answer(question, hosts.now);
    hosts.now += Time(way());
    const auto next = probe.answer(answer, hosts.here());
    EXPECT_NE(next.ask, next.result.has_value());
    if (next.result) return *next.result;
  }
}

TEST(ClockProbe, TheTruthLiesWithinTheErrorHoweverUnevenTheWays) {
  std::mt19937_64 random(3);
  std::exponential_distribution<double> delay(1 / 200'000.0);
  for (const Time ahead : {Time(0), Time(5'000), Time(-3'600'000'000'000), Time(86'400'000'000'000)}) {
    for (int i = 0; i < 200; ++i) {
      TwoHosts hosts{Time(100'000'000'000'000), ahead};
      const ClockOffset found = measure(hosts, [&] { return 20'000 + static_cast<std::int64_t>(delay(random)); });
      EXPECT_LE(std::chrono::abs(found.offset - ahead), found.error);
      EXPECT_EQ(found.round_trips, ClockProbe::kRoundTrips);
    }
  }
}

TEST(ClockProbe, EvenWaysGiveTheOffsetItselfAndTheShortestCounts) {
  TwoHosts hosts{Time(1'000'000'000), Time(77'000)};
  int ways = 0;
  const ClockOffset found = measure(hosts, [&] { return ways++ / 2 == 9 ? 30'000 : 900'000 + ways % 2 * 100'000; });
  EXPECT_EQ(found.error, Time(30'000)) << "of the tenth round trip, the shortest";
  EXPECT_EQ(found.offset, Time(77'000));
}

TEST(ClockProbe, AnswersToOtherQuestionsAndNonsense) {
  ClockProbe probe;
  EXPECT_FALSE(probe.running());
  EXPECT_FALSE(probe.answer({{"id", 1}, {"time", 5}}, Time(9)).ask) << "nobody asked";
  probe.start();
  const Json first = probe.question(Time(10));
  const auto stale = probe.answer({{"id", 99}, {"time", 5}}, Time(11));
  EXPECT_FALSE(stale.ask);
  EXPECT_FALSE(stale.result);
  EXPECT_TRUE(probe.answer(clock_answer(first, Time(5)), Time(12)).ask);
  EXPECT_THROW(probe.answer({{"id", 2}}, Time(13)), DataError);
  EXPECT_THROW(probe.answer({{"id", 2}, {"time", "5"}}, Time(13)), DataError);
  EXPECT_THROW(probe.answer({{"id", 2}, {"time", -1}}, Time(13)), DataError);
  EXPECT_THROW(probe.answer({{"id", 2}, {"time", INT64_MAX}}, Time(13)), DataError);
}

}  // namespace
}  // namespace dtrain::comm
