#include "machine_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <tuple>
#include <utility>

#include <sys/file.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/host/readings.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/scheduler/core_groups.h"

namespace dtrain::launcher {

namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bits: only names a file; the whole key is in it.
std::uint64_t hash_of_key(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Remembered::Remembered(const fs::path& cache_folder, const std::string& question)
    : folder_(cache_folder.empty() ? fs::path() : cache_folder / question) {}

fs::path Remembered::file(const Json& key) const {
  if (folder_.empty()) return {};
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of_key(to_line(key))));
  return folder_ / name.data();
}

std::optional<Json> Remembered::read(const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return std::nullopt;
  try {
    Json json = read_json(file);
    if (json.at("key").is_object()) return json;
  } catch (const std::exception&) {  // the limits are measured anew, and the file is replaced
  }
  return std::nullopt;
}

std::optional<Json> Remembered::find(const Json& key) const {
  if (folder_.empty()) return std::nullopt;
  std::optional<Json> entry = read(file(key));
  if (!entry || entry->at("key") != key) return std::nullopt;
  return entry;
}

void Remembered::store(const Json& key, const Json& answer) const {
  if (folder_.empty()) return;
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) throw SystemError("cannot make the folder " + folder_.string(), code.value());
  Json entry = {{"key", key}};
  entry.update(answer);
  write_file_atomic(file(key), to_line(entry) + "\n", 0600);
}

namespace {

// A machine that is always busy is not measured at each launch.
constexpr std::chrono::hours kDisturbedLasts{1};
constexpr std::chrono::minutes kFirstPause{1};  // between repetitions; each next one is twice as long
// Ranks that share their cores with one busy program each lose half of them, while the program alone has all of them.
// So a busy share below the displaced share means less work of others, and below its half clearly less.
constexpr double kQuieter = 0.5;
constexpr const char* kRepeats = "repeats";
constexpr int kMostRepeats = 7;  // the pause is longer than an hour then

// Returns the limits of an entry; empty: the entry has none.
std::optional<profile::RankLimits> limits_in(const std::optional<Json>& entry) {
  if (!entry || !entry->contains("limits")) return std::nullopt;
  profile::RankLimits limits = profile::rank_limits_of(entry->at("limits"));
  // Every measurement has this figure: without it, the file is damaged.
  return limits.memory_gb_s ? std::optional(std::move(limits)) : std::nullopt;
}

std::vector<std::vector<int>> cpus_of_slots(const std::vector<std::vector<int>>& cores, int slots) {
  std::vector<std::vector<int>> cpus;
  for (scheduler::Slot& slot : scheduler::divide_cores(cores, slots).slots) cpus.push_back(std::move(slot.cpus));
  return cpus;
}

std::vector<std::vector<int>> cpus_of_groups(const std::vector<host::Core>& cores, int slots) {
  std::vector<scheduler::CoreUnit> units;
  for (const host::Core& core : cores) units.push_back(scheduler::unit_of(core));
  std::vector<std::vector<int>> cpus;
  for (const std::vector<int>& group : scheduler::divide_cores_evenly(units, slots)) {
    cpus.push_back(scheduler::cpus_of(cores, group));
  }
  return cpus;
}

}  // namespace

RanksOfHost on_this_host(RanksOfHost ranks) {
  const std::vector<host::Core> cores = host::usable_cores();
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  if (ranks.cpus.empty()) {
    const int slots = std::max(ranks.slots, ranks.ranks);
    ranks.cpus = ranks.of_cores && std::cmp_less_equal(slots, cores.size()) ? cpus_of_groups(cores, slots)
                                                                            : cpus_of_slots(cpus, slots);
    if (std::cmp_greater(ranks.cpus.size(), ranks.ranks)) ranks.cpus.resize(static_cast<std::size_t>(ranks.ranks));
  }
  if (ranks.threads > 0) return ranks;
  std::vector<host::RankThreads> threads;
  for (const std::vector<int>& of_rank : ranks.cpus) {
    threads.push_back(host::threads_on(scheduler::count_cores(cpus, of_rank), of_rank.size(), std::nullopt));
  }
  const host::RankThreads least = host::threads_of_all(threads);
  ranks.threads = least.threads;
  ranks.most_threads = least.most_threads;
  return ranks;
}

Json limits_key(int threads, int ranks, int most_threads) {
  // The version is read once: this takes some 50 ms.
  static const std::string libtorch = rank::libtorch_minor(rank::process_variables());
  const host::Processor processor = host::processor();
  Json key = {{"cpu", processor.name}, {"revision", processor.revision}, {"threads", threads},
              {"ranks", ranks},        {"libtorch", libtorch},           {"dtrain", rank::version()}};
  if (most_threads > threads) key["most_threads"] = most_threads;
  return key;
}

bool should_measure_again(const Measurement& last, std::optional<double> busy_share) {
  if (last.displaced_share <= profile::kDisturbed) return false;
  if (last.age > kDisturbedLasts) return true;
  if (!busy_share || *busy_share > kQuieter * last.displaced_share) return false;
  return last.repeats == 0 || last.age >= kFirstPause * (1 << (std::min(last.repeats, kMostRepeats) - 1));
}

LimitsCache::LimitsCache(const fs::path& folder) : files_(folder, "limits") {}

fs::path LimitsCache::lock_file() const {
  return files_.folder().empty() ? fs::path() : files_.folder() / "lock";
}

std::optional<profile::RankLimits> LimitsCache::find(const Json& key) const {
  return limits_in(files_.find(key));
}

Measurement LimitsCache::measurement(const Json& key, const profile::RankLimits& found) const {
  Measurement last{.displaced_share = found.displaced_share.value_or(0)};
  if (const std::optional<Json> entry = files_.find(key); entry && entry->contains(kRepeats)) {
    const Json& repeats = entry->at(kRepeats);
    if (repeats.is_number_integer()) last.repeats = std::clamp(repeats.get<int>(), 0, kMostRepeats);
  }
  std::error_code code;
  const auto written = fs::last_write_time(files_.file(key), code);
  if (!code) last.age = std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - written);
  return last;
}

void LimitsCache::store(const Json& key, const profile::RankLimits& limits, int repeats) const {
  Json entry = {{"limits", profile::to_json(limits)}};
  if (repeats > 0) entry[kRepeats] = std::min(repeats, kMostRepeats);
  files_.store(key, entry);
}

std::vector<profile::RankLimits> LimitsCache::of_this_machine() const {
  std::vector<profile::RankLimits> result;
  if (files_.folder().empty()) return result;
  std::error_code code;
  for (const auto& file : fs::directory_iterator(files_.folder(), code)) {
    const std::optional<Json> entry = Remembered::read(file.path());
    const std::optional<profile::RankLimits> known = limits_in(entry);
    if (!known) continue;
    profile::RankLimits limits = *known;
    const Json& key = entry->at("key");
    const int threads = limits.gflops_by_threads.empty() ? limits.threads : limits.gflops_by_threads.begin()->first;
    const int most = limits.gflops_by_threads.empty() ? 0 : limits.gflops_by_threads.rbegin()->first;
    if (key == limits_key(threads, limits.ranks, most)) result.push_back(std::move(limits));
  }
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return std::tie(a.threads, a.ranks) < std::tie(b.threads, b.ranks); });
  return result;
}

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
rank::Variables with_libtorch_of(const fs::path& of_ranks, rank::Variables variables) {
  if (of_ranks.empty() || !is_program(of_ranks)) return variables;
  const fs::path libraries = rank::libtorch_folder(of_ranks, rank::find_libraries(of_ranks, variables));
  if (libraries.filename() == "lib") variables["DTRAIN_LIBTORCH_DIR"] = libraries.parent_path().string();
  return variables;
}

// Measures the ranks of this host. Error: as run_calibration().
Json calibrate(const RanksOfHost& ranks, const rank::Variables& variables) {
  const std::string most_threads = std::to_string(std::max(ranks.threads, ranks.most_threads));
  rank::Variables environment = host::wait_of_threads(variables);
  environment["OMP_NUM_THREADS"] = most_threads;
  return run_calibration({"--threads", std::to_string(ranks.threads), "--ranks", std::to_string(ranks.ranks), "--cpus",
                          cpus_text(ranks.cpus), "--most-threads", most_threads},
                         environment, ranks.program, variables);
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

// `before`: limits measured earlier, while other programs disturbed. They stay if the programs disturb more now.
MachineLimits measure_and_store(const RanksOfHost& ranks, const LimitsCache& cache, const Json& key,
                                const std::optional<profile::RankLimits>& before, const rank::Variables& variables) {
  MachineLimits result;
  const Json answer = calibrate(ranks, variables);
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

Json run_calibration(const std::vector<std::string>& arguments, const rank::Variables& environment,
                     const fs::path& of_program, const rank::Variables& variables) {
  const rank::Variables of_ranks = with_libtorch_of(of_program, variables);
  const fs::path program = rank::find_training_program(kCalibrationProgram, of_ranks);
  if (program.empty()) {
    const rank::MissingProgram missing = rank::missing_program(kCalibrationProgram);
    throw Error(missing.text, missing.remedy);
  }
  std::string libraries = rank::find_libraries(program, of_ranks);
  // The ranks look there first, too.
  if (const auto given = variables.find("LD_LIBRARY_PATH"); given != variables.end() && !given->second.empty()) {
    libraries = given->second + (libraries.empty() ? "" : ":" + libraries);
  }
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ProcessOptions options;
  options.command = {program.string()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.environment = environment;
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

MachineLimits machine_limits(const RanksOfHost& given, Measure measure, const rank::Variables& variables) {
  MachineLimits result;
  try {
    const RanksOfHost ranks = on_this_host(given);
    const LimitsCache cache(rank::cache_folder(variables));
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

bool may_calibrate(const rank::Variables& variables) {
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

}  // namespace dtrain::launcher
