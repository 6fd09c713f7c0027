#include "calibration/machine_limits.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/readings.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;
using CalibrationWatch = std::chrono::steady_clock;

constexpr const char* kCalibrationProgram = "dtrain-calibrate";
constexpr std::chrono::milliseconds kLooksAtOthers{250};  // /proc/stat counts in steps of 10 ms
constexpr std::chrono::seconds kCalibrationPatience{40};  // for the program, and for another process that measures

// Returns whatever the writers write, until all of them have ended. Error: they take longer.
std::string read_output_until(int fd, CalibrationWatch::time_point deadline) {
  if (auto text = read_to_end(fd, deadline)) return *std::move(text);
  throw Error(std::string(kCalibrationProgram) + " takes longer than " + std::to_string(kCalibrationPatience.count()) +
              " s");
}

std::string cpus_text(const std::vector<std::vector<int>>& cpus) {
  std::vector<std::string> ranks;
  for (const std::vector<int>& rank : cpus) {
    std::vector<std::string> numbers;
    for (const int cpu : rank) numbers.push_back(std::to_string(cpu));
    ranks.push_back(join(numbers, ","));
  }
  return join(ranks, ":");
}

// Returns the variables that lead dtrain-calibrate to the libtorch that the ranks' program has found by itself.
Variables with_libtorch_of(const fs::path& of_ranks, Variables variables) {
  if (of_ranks.empty() || !is_program(of_ranks)) return variables;
  const fs::path libraries = libtorch_folder(of_ranks, find_libraries(of_ranks, variables));
  if (libraries.filename() == "lib") variables["DTRAIN_LIBTORCH_DIR"] = libraries.parent_path().string();
  return variables;
}

// Returns the line of JSON that dtrain-calibrate prints. Error: it cannot be started, or has failed.
Json run_calibration(const RanksOfHost& ranks, const Variables& variables) {
  const Variables of_ranks = with_libtorch_of(ranks.program, variables);
  const fs::path program = find_training_program(kCalibrationProgram, of_ranks);
  if (program.empty()) {
    const MissingProgram missing = missing_program(kCalibrationProgram);
    throw Error(missing.text, missing.remedy);
  }
  const std::string libraries = find_libraries(program, of_ranks);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = {program.string(), "--threads", std::to_string(ranks.threads), "--ranks",
                     std::to_string(ranks.ranks)};
  options.command.insert(options.command.end(), {"--cpus", cpus_text(ranks.cpus)});
  const int most_threads = std::max(ranks.threads, ranks.most_threads);
  options.command.insert(options.command.end(), {"--most-threads", std::to_string(most_threads)});
  options.environment = wait_of_threads(variables);
  options.environment["OMP_NUM_THREADS"] = std::to_string(most_threads);
  if (!libraries.empty()) options.environment["LD_LIBRARY_PATH"] = libraries;
  options.fds = {{0, nothing.get()}, {1, out.writer.get()}, {2, err.writer.get()}};
  Process process = Process::start(options);
  out.writer.reset();
  err.writer.reset();
  const auto deadline = CalibrationWatch::now() + kCalibrationPatience;
  const std::string text = read_output_until(out.reader.get(), deadline);
  const std::string errors = read_output_until(err.reader.get(), deadline);
  const ExitStatus status = process.wait();
  if (!status.success()) {
    const std::string last = split(errors, '\n').front();
    throw Error(std::string(kCalibrationProgram) + " ended with " + status.describe() +
                (last.empty() ? "" : ": " + last));
  }
  return Json::parse(text);
}

// Returns the share of the CPUs that other programs use while this process sleeps. Empty: /proc/stat does not say.
std::optional<double> busy_share_of(const std::vector<std::vector<int>>& cpus_of_ranks) {
  const auto before = host::read_cpu_times();
  std::this_thread::sleep_for(kLooksAtOthers);
  const auto after = host::read_cpu_times();
  if (!before || !after) return std::nullopt;
  double sum = 0;
  int count = 0;
  for (const std::vector<int>& cpus : cpus_of_ranks) {
    for (const int cpu : cpus) {
      const auto number = static_cast<std::size_t>(cpu);
      if (number >= before->cores.size() || number >= after->cores.size()) continue;
      sum += host::busy_share(before->cores[number], after->cores[number]);
      ++count;
    }
  }
  return count == 0 ? std::nullopt : std::optional(sum / count);
}

// Returns the lock that the measuring process holds. Empty: this file system has no locks.
UniqueFd lock_machine(const fs::path& file) {
  std::error_code code;
  fs::create_directories(file.parent_path(), code);
  UniqueFd held(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!held) throw SystemError("cannot open " + file.string(), errno);
  const auto deadline = CalibrationWatch::now() + kCalibrationPatience;
  while (::flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return {};
    if (CalibrationWatch::now() > deadline)
      throw Error("another process that measures this machine holds " + file.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return held;
}

// `before`: limits measured earlier, while other programs disturbed. They stay if the programs disturb more now.
MachineLimits measure_and_store(const RanksOfHost& ranks, const LimitsCache& cache, const Json& key,
                                const std::optional<profile::RankLimits>& before, const Variables& variables) {
  MachineLimits result;
  const Json answer = run_calibration(ranks, variables);
  result.limits = profile::rank_limits_of(answer.at("limits"));
  result.seconds = answer.at("seconds").get<double>();
  int repeats = 0;
  if (before) {
    result.before = before->displaced_share.value_or(0);
    repeats = cache.measurement(key, *before).repeats + 1;
    if (result.before < result.limits->displaced_share.value_or(0)) result.limits = before;
  }
  try {
    cache.store(key, *result.limits, repeats);
  } catch (const Error& error) {
    result.failure = "they are not remembered: " + std::string(error.what());
  }
  return result;
}

}  // namespace

MachineLimits machine_limits(const RanksOfHost& given, Measure measure, const Variables& variables) {
  MachineLimits result;
  try {
    const RanksOfHost ranks = on_this_host(given);
    const LimitsCache cache(cache_folder(variables));
    const Json key = limits_key(ranks.threads, ranks.ranks, ranks.most_threads);
    const bool remembers = !cache.lock_file().empty();
    std::optional<double> busy_share;
    const auto is_good_enough = [&] {
      return result.limits && !should_measure_again(cache.measurement(key, *result.limits), busy_share);
    };
    if (measure != Measure::kAnew) {
      result.limits = cache.find(key);
      if (measure == Measure::kNever) return result;
      if (result.limits && should_measure_again(cache.measurement(key, *result.limits), 0))  // looking takes a moment
        busy_share = busy_share_of(ranks.cpus);
      if (is_good_enough()) return result;
      if (!remembers) {
        result.failure = "there is no folder to remember them in: HOME is not set";
        return result;
      }
    }
    UniqueFd held;
    if (remembers) held = lock_machine(cache.lock_file());
    // The process that held the lock may have measured just this.
    if (measure == Measure::kIfUnknown) result.limits = cache.find(key);
    if (is_good_enough()) return result;
    return measure_and_store(ranks, cache, key, result.limits, variables);
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
  return result;
}

bool may_calibrate(const Variables& variables) {
  const auto found = variables.find("DTRAIN_CALIBRATION");
  if (found == variables.end() || found->second.empty() || found->second == "true") return true;
  if (found->second == "false") return false;
  throw ConfigError("environment: DTRAIN_CALIBRATION=" + found->second + " is neither true nor false",
                    "false: launches use what was measured before, and measure nothing");
}

Json to_json(const MachineLimits& limits) {
  return {{"limits", limits.limits ? profile::to_json(*limits.limits) : Json()},
          {"seconds", limits.seconds},
          {"before", limits.before},
          {"failure", limits.failure}};
}

MachineLimits machine_limits_of(const Json& json) {
  MachineLimits result{.seconds = json.at("seconds").get<double>(),
                       .before = json.at("before").get<double>(),
                       .failure = json.at("failure").get<std::string>()};
  if (const Json& limits = json.at("limits"); !limits.is_null()) result.limits = profile::rank_limits_of(limits);
  return result;
}

Json to_json(const RanksOfHost& ranks) {
  return {{"threads", ranks.threads},
          {"most_threads", ranks.most_threads},
          {"ranks", ranks.ranks},
          {"slots", ranks.slots},
          {"of_cores", ranks.of_cores},
          {"cpus", ranks.cpus},
          {"program", ranks.program.string()}};
}

RanksOfHost ranks_of_host(const Json& json) {
  return {.threads = json.at("threads").get<int>(),
          .most_threads = json.at("most_threads").get<int>(),
          .ranks = json.at("ranks").get<int>(),
          .slots = json.at("slots").get<int>(),
          .of_cores = json.at("of_cores").get<bool>(),
          .cpus = json.at("cpus").get<std::vector<std::vector<int>>>(),
          .program = json.at("program").get<std::string>()};
}

}  // namespace dtrain::run
