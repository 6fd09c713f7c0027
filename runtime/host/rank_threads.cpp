#include "dtrain/host/rank_threads.h"

#include <algorithm>
#include <string_view>

#include "dtrain/base/text.h"

namespace dtrain::host {

namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char* kNumber = "OMP_NUM_THREADS";
constexpr double kRounding = 0.01;  // a limit is a quotient of two numbers of microseconds

int share_of_time(double cpu_limit, int ranks) {
  return std::max(1, static_cast<int>((cpu_limit + kRounding) / ranks));
}

// The parent may be srun's process, bound like the task. So a process also counts as bound if there are more ranks than
// cores that it may use, and its cgroup has other CPUs.
bool is_bound(const ProcessCores& mine, int ranks) {
  return mine.cpus < mine.cpus_of_parent || (mine.cores < ranks && mine.cpus < mine.cpus_of_group);
}

}  // namespace

std::optional<int> threads_granted(double cpu_limit, std::size_t cpus, int ranks) {
  if (cpu_limit >= static_cast<double>(cpus) - kRounding) return std::nullopt;
  return share_of_time(cpu_limit, ranks);
}

RankThreads threads_on(int cores, std::size_t cpus, std::optional<int> granted) {
  const int threads = std::max(1, std::min(granted.value_or(cores), cores));
  return {.threads = threads, .most_threads = granted ? threads : static_cast<int>(cpus)};
}

RankThreads threads_of_all(std::span<const RankThreads> ranks) {
  RankThreads least;
  for (const RankThreads& rank : ranks) {
    if (rank.threads == 0) continue;
    least = least.threads == 0
                ? rank
                : RankThreads{std::min(least.threads, rank.threads), std::min(least.most_threads, rank.most_threads)};
  }
  return least;
}

int threads_of_process(const ProcessCores& mine, int ranks) {
  if (!is_bound(mine, ranks)) return threads_of_children(mine, ranks);
  // Ranks that are bound to as many cores each share some, if the group has too few for all of them.
  const int of_group = std::max(mine.cores, mine.cpus > 0 ? mine.cpus_of_group * mine.cores / mine.cpus : 0);
  const int threads = mine.cores * ranks <= of_group ? mine.cores : of_group / ranks;
  const bool time_is_limited = mine.time_of_group < mine.cpus_of_group;
  return std::max(1, time_is_limited ? std::min(share_of_time(mine.time_of_group, ranks), threads) : threads);
}

int threads_of_children(const ProcessCores& mine, int ranks) {
  return std::max(1, std::min(share_of_time(mine.time_of_group, ranks), mine.cores / ranks));
}

std::optional<int> threads_to_set(int of_library, const Variables& variables, const ProcessCores& mine, int ranks) {
  // By default libtorch has a thread for each logical CPU, or for each core where MKL says so.
  const bool by_default = of_library == mine.cpus || of_library == mine.cores;
  if (threads_of_user(variables) || !by_default) return std::nullopt;
  return threads_of_process(mine, ranks);
}

std::optional<int> threads_of_user(const Variables& variables) {
  const auto number = variables.find(kNumber);
  if (number == variables.end()) return std::nullopt;
  std::string_view text = number->second;
  return std::max(0, take_number<int>(text).value_or(0));
}

Variables wait_of_threads(const Variables& of_user) {
  if (of_user.contains("OMP_WAIT_POLICY")) return {};
  Variables result{{"OMP_WAIT_POLICY", "passive"}};
  // GNU's OpenMP, which libtorch brings, needs a number: without one, passive threads do not spin at all. Then each
  // operator of a rank with several threads wakes them up: steps take 6 to 9% longer (two threads, ResNet-18 and a
  // small CNN). Without a policy the number is 300,000, some milliseconds.
  if (!of_user.contains("GOMP_SPINCOUNT")) result["GOMP_SPINCOUNT"] = "10000";
  return result;
}

Variables thread_variables(const Variables& variables,
                           const std::vector<std::pair<std::string, std::string>>& of_experiment, int threads) {
  Variables of_user = variables;
  for (const auto& [name, value] : of_experiment) of_user[name] = value;
  Variables result = wait_of_threads(of_user);
  if (threads > 0 && !variables.contains(kNumber)) result[kNumber] = std::to_string(threads);
  for (const auto& [name, value] : of_experiment) result[name] = value;
  return result;
}

}  // namespace dtrain::host
