#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "bench_scheduler.h"
#include "clusters.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/numeric.h"

namespace dtrain::scheduler {
namespace {

constexpr int kAgents = 10'000;
constexpr int kRuns = 15;
constexpr int kPrime = 59'999;  // no size divides it: only agents of different sizes together have so many

// A tenth of the agents partly taken, in no order.
std::vector<AgentSlots> large_cluster(const std::function<int(int)>& size_of) {
  std::mt19937 random(1);
  std::vector<int> sizes;
  for (int i = 0; i < kAgents; ++i) sizes.push_back(size_of(i));
  std::vector<AgentSlots> agents = agents_of(sizes);
  for (AgentSlots& agent : agents) {
    if (agent.slots > 1 && random() % 10 == 0)
      agent.free = static_cast<int>(random() % static_cast<unsigned>(agent.slots));
  }
  std::shuffle(agents.begin(), agents.end(), random);
  return agents;
}

// The median of several runs, in milliseconds. What is measured must end as expected.
double median_ms(const std::function<bool()>& run, const char* what) {
  const SystemClock clock;
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    const Nanoseconds start = clock.monotonic();
    const bool expected = run();
    times.push_back(to_seconds(clock.monotonic() - start) * 1e3);
    if (!expected) throw Error(std::string("the placement of ") + what + " is not what it should be");
  }
  return std::round(median_low(std::move(times)) * 1e3) / 1e3;
}

double placed_ms(const std::vector<AgentSlots>& agents, int count, std::size_t least_agents, const char* what) {
  return median_ms(
      [&] {
        const auto placement = place(agents, slots(count));
        return placement && placement->size() >= least_agents;
      },
      what);
}

}  // namespace

Json measure_placement() {
  const auto usual = large_cluster([](int i) { return 1 + i % 16; });
  const auto many_sizes = large_cluster([](int i) { return 1 + i % 1000; });
  const auto even = large_cluster([](int i) { return 2 + 2 * (i % 8); });
  const auto hard = large_cluster([](int i) { return i == 5 ? 1 : 2 + 2 * (i % 500); });  // the 1 must be found
  Json result = {
      {"agents", kAgents},
      {"one_agent_ms", placed_ms(usual, 16, 1, "one agent")},
      {"one_size_ms", placed_ms(usual, 16 * 500, 500, "agents of one size")},
      {"different_sizes_ms", placed_ms(usual, kPrime, 2, "agents of different sizes")},
      {"thousand_sizes_ms", placed_ms(many_sizes, kPrime, 2, "agents of a thousand sizes")},
      {"hard_ms", placed_ms(hard, 20'001, 2, "a set that needs the smallest agent")},
      {"nowhere_ms", median_ms([&] { return !place(even, slots(kPrime)); }, "what fits nowhere")},
      {"refusal_ms", median_ms([&] { return never_fits(even, slots(kPrime), 1 << 20).has_value(); }, "a refusal")}};
  double worst = 0;
  for (const auto& [name, value] : result.items()) {
    if (name.ends_with("_ms")) worst = std::max(worst, value.get<double>());
  }
  result["placement_ms"] = worst;  // the slowest of them
  return result;
}

}  // namespace dtrain::scheduler
