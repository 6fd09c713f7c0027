// Remembers the limits of machines from run to run: one small JSON file for each setting in the user's cache folder,
// which hosts may share. Files are replaced whole. Any thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/rank_limits.h"
#include "dtrain/rank/environment.h"

namespace dtrain::launcher {

// Results that launches keep for later launches: one small JSON file for each key, in a folder of the user's cache
// folder, which hosts may share. Files are replaced whole. Any thread.
class Remembered {
 public:
  // `cache_folder`: empty: nothing is remembered. `question`: the name of the folder in it.
  Remembered(const std::filesystem::path& cache_folder, const std::string& question);

  const std::filesystem::path& folder() const { return folder_; }  // empty: nothing is remembered
  std::filesystem::path file(const Json& key) const;               // empty likewise
  // Reads a file: {"key", …}; empty if the file is damaged or missing.
  static std::optional<Json> read(const std::filesystem::path& file);
  // Returns the entry of the key, {"key", …}. A file that is missing, damaged or of another key counts as none.
  std::optional<Json> find(const Json& key) const;
  // `answer`: a mapping without "key". SystemError: it cannot be written.
  void store(const Json& key, const Json& answer) const;

 private:
  std::filesystem::path folder_;
};

// Ranks of one host whose limits are asked for.
struct RanksOfHost {
  int threads = 0;        // of a rank; 0: one for each of its cores, or for each of its CPUs if that is faster
  int most_threads = 0;   // threads with one for each CPU; not above `threads`: not tried
  int ranks = 1;          // of the host
  int slots = 0;          // of the host, which divide its cores; 0: as many as ranks
  bool of_cores = false;  // the slots are made of cores (DTRAIN_SLOTS)
  std::vector<std::vector<int>> cpus;  // of each rank; empty: those of the first slots
  std::filesystem::path program;       // of the ranks, whose libtorch is taken; empty: dtrain's own
};
// Returns `ranks` with the CPUs and threads of this host for the fields that are not given.
RanksOfHost on_this_host(RanksOfHost ranks);

// Returns everything on which figures depend: the processor, threads and ranks, and the versions of libtorch and
// dtrain. `most_threads` as in RanksOfHost: the limits of such a key say to which of the two numbers they belong.
Json limits_key(int threads, int ranks, int most_threads = 0);

// The measurement of remembered limits.
struct Measurement {
  double displaced_share = 0;   // RankLimits::displaced_share
  int repeats = 0;              // number of repetitions because other programs had disturbed the measurement
  std::chrono::seconds age{0};  // since the last time
};

// True if a launch measures the limits again. `busy_share`: the share of the ranks' CPUs that other programs use now, 0
// to 1; empty: not known. A measurement that other programs disturbed is repeated at the first launch that finds the
// machine clearly quieter, then after 1, 2, 4, … minutes, as programs that work now and then may disturb each
// repetition; and after an hour in any case.
bool should_measure_again(const Measurement& last, std::optional<double> busy_share);

class LimitsCache {
 public:
  // `folder`: the user's cache folder; empty: nothing is remembered.
  explicit LimitsCache(const std::filesystem::path& folder);

  // Return the file for a key, and the file that is locked while a process measures. Empty: nothing is remembered.
  std::filesystem::path file(const Json& key) const { return files_.file(key); }
  std::filesystem::path lock_file() const;
  // Returns the limits for the key. A file that is missing, damaged or of another key counts as none.
  std::optional<profile::RankLimits> find(const Json& key) const;
  // Returns the measurement of the limits that find() has returned.
  Measurement measurement(const Json& key, const profile::RankLimits& found) const;
  // `repeats` as in Measurement. SystemError: it cannot be written.
  void store(const Json& key, const profile::RankLimits& limits, int repeats = 0) const;
  // Returns all limits measured with this processor and these versions, by threads, then by ranks.
  std::vector<profile::RankLimits> of_this_machine() const;

 private:
  Remembered files_;
};

// The limits of this machine for the ranks of a run: remembered, or measured by dtrain-calibrate, which links libtorch.
// Only one process of the user measures at a time. Blocks for seconds; one thread.

struct MachineLimits {
  std::optional<profile::RankLimits> limits;
  double seconds = 0;   // that measuring took; 0: the limits were remembered
  double before = 0;    // the displaced share of an earlier measurement that this one repeats; 0: it is the first
  std::string failure;  // the reason why limits are missing or not remembered; empty: nothing is wrong
};

// Returns what dtrain-calibrate prints, {"libtorch", "seconds", …}, with the libtorch of the ranks' program (empty:
// dtrain's own) and `environment` besides the process's. Error: it cannot be started, has failed, or takes too long.
Json run_calibration(const std::vector<std::string>& arguments, const rank::Variables& environment,
                     const std::filesystem::path& program, const rank::Variables& variables);

// Returns the lock that the measuring process holds; waits for another process that holds it. Empty: this file system
// has no locks.
UniqueFd lock_machine(const std::filesystem::path& file);

enum class Measure {
  kNever,      // only what is remembered
  kIfUnknown,  // if nothing is remembered, or should_measure_again() is true
  kAnew,       // in any case
};

// Throws nothing that a run would have to end for: failures become `failure`.
MachineLimits machine_limits(const RanksOfHost& ranks, Measure measure, const rank::Variables& variables);

// True if launches may measure: DTRAIN_CALIBRATION is "true" or unset. ConfigError: neither "true" nor "false".
bool may_calibrate(const rank::Variables& variables);

Json to_json(const MachineLimits& limits);          // for another host: {"limits", "seconds", "before", "failure"}
MachineLimits machine_limits_of(const Json& json);  // Json::exception if it is malformed
Json to_json(const RanksOfHost& ranks);
RanksOfHost ranks_of_host(const Json& json);  // Json::exception if it is malformed

}  // namespace dtrain::launcher
