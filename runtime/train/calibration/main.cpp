// dtrain-calibrate --threads T [--most-threads M] --ranks N [--cpus 0,1:2,3]: measures the limits of this machine for a
// rank, as a process beside dtrain that may link libtorch. Prints one line of JSON: {"libtorch", "seconds", "limits"}.
#include <chrono>
#include <cstdio>
#include <string>

#include <torch/version.h>
#include <CLI/CLI.hpp>

#include "calibration/measure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"

namespace {

// Parses the CPUs of each rank: "0,1:2,3" for two ranks. Empty: no CPUs.
std::vector<std::vector<int>> cpus_of(const std::string& text) {
  std::vector<std::vector<int>> ranks;
  if (text.empty()) return ranks;
  for (const std::string& rank : dtrain::split(text, ':')) {
    ranks.emplace_back();
    for (const std::string& cpu : dtrain::split(rank, ',')) ranks.back().push_back(std::stoi(cpu));
  }
  return ranks;
}

}  // namespace

int main(int argc, char** argv) {
  using Watch = std::chrono::steady_clock;
  const auto start = Watch::now();
  dtrain::calibration::Setting setting;
  std::string cpus;
  CLI::App app(
      "Measures the limits of this machine for a rank of dtrain. dtrain starts it; dtrain doctor --bench shows "
      "the figures.");
  app.add_option("--threads", setting.threads, "Threads of a rank")->check(CLI::Range(1, 4096));
  app.add_option("--most-threads", setting.most_threads, "Threads of a rank with one for each logical CPU, to be tried")
      ->check(CLI::Range(1, 4096));
  app.add_option("--ranks", setting.ranks, "Ranks on this host")->check(CLI::Range(1, 4096));
  app.add_option("--cpus", cpus, "The CPUs of each rank: 0,1:2,3")
      ->check(CLI::Validator(
          [](std::string& text) {
            return text.find_first_not_of("0123456789,:") == std::string::npos ? "" : "not like 0,1:2,3";
          },
          "CPUS"));
  CLI11_PARSE(app, argc, argv);
  try {
    setting.cpus = cpus_of(cpus);
    const dtrain::profile::RankLimits limits = dtrain::calibration::measure(setting);
    const std::chrono::duration<double> seconds = Watch::now() - start;
    std::printf("%s\n", dtrain::to_line({{"libtorch", TORCH_VERSION},
                                         {"seconds", seconds.count()},
                                         {"limits", dtrain::profile::to_json(limits)}})
                            .c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-calibrate: %s\n", error.what());
    return 1;
  }
}
