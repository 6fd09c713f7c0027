#include "turns.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain::bench {
namespace {

constexpr std::size_t kWarm = 4u << 20;  // below it an operation goes before each sample, so that nobody is asleep

float value(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 1000);
}

// Whole numbers that every order of summing gives alike.
void check(const Subject& subject, const std::string& name, float* data, std::size_t count, int rank, int ranks) {
  for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  subject.barrier();
  subject.all_reduce(data, count);
  for (std::size_t i = 0; i < count; ++i) {
    float want = 0;
    for (int r = 0; r < ranks; ++r) want += value(r, i);
    if (data[i] == want) continue;
    throw Error(name + " summed " + std::to_string(count) + " elements wrongly: element " + std::to_string(i) + " is " +
                std::to_string(data[i]) + " where " + std::to_string(want) + " is right");
  }
  subject.barrier();
  std::fill_n(data, count, 0.0f);  // zeros stay zeros however often they are summed
  subject.barrier();
}

}  // namespace

void take_turns(const std::string& base, int rank, int ranks, const std::map<std::string, Subject>& subjects) {
  const std::string path = base + std::to_string(rank);
  std::ifstream commands(path + ".commands");
  std::ofstream replies(path + ".replies");
  const SystemClock clock;
  std::set<std::pair<std::string, std::size_t>> checked;
  for (std::string line; std::getline(commands, line) && line != "0";) {
    std::istringstream words(line);
    std::string name;
    std::size_t bytes = 0;
    int repeats = 0;
    int samples = 0;
    words >> name >> bytes >> repeats >> samples;
    const auto found = subjects.find(name);
    if (!words || found == subjects.end()) throw Error("what is '" + line + "'?");
    const Subject& subject = found->second;
    float* const data = subject.memory(bytes);
    const std::size_t count = bytes / sizeof(float);
    if (subject.reduces && checked.emplace(name, bytes).second) check(subject, name, data, count, rank, ranks);
    std::ostringstream answer;
    for (int sample = 0; sample < samples; ++sample) {
      if (bytes < kWarm) subject.all_reduce(data, count);
      subject.barrier();
      const Nanoseconds began = clock.monotonic();
      for (int i = 0; i < repeats; ++i) subject.all_reduce(data, count);
      answer << (clock.monotonic() - began).count() / repeats << " ";
    }
    replies << answer.str() << std::endl;
  }
}

}  // namespace dtrain::bench
