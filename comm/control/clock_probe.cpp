#include "control/clock_probe.h"

#include "control/frame.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::int64_t kLatestTime = std::int64_t{1} << 62;  // ns, 146 years; differences stay within 64 bits

}  // namespace

Json ClockProbe::question(Time now) {
  asked_ = now;
  return {{"t", "ping"}, {"id", ++id_}};
}

void ClockProbe::start() {
  left_ = kRoundTrips;
  best_.reset();
}

ClockProbe::Next ClockProbe::answer(const Json& message, Time now) {
  const std::int64_t id = integer_member(message, "id");
  const std::int64_t time = integer_member(message, "time");
  if (time < 0 || time > kLatestTime) throw DataError("a time that is none");
  if (!running() || id != id_) return {};
  const Time middle = asked_ + (now - asked_) / 2;
  const Time error = (now - asked_ + Time(1)) / 2;
  if (!best_ || error < best_->error) best_ = ClockOffset{middle, Time(time) - middle, error, kRoundTrips};
  if (--left_ > 0) return {true, std::nullopt};
  return {false, best_};
}

Json clock_answer(const Json& question, ClockProbe::Time now) {
  return {{"t", "pong"}, {"id", integer_member(question, "id")}, {"time", now.count()}};
}

}  // namespace dtrain::comm
