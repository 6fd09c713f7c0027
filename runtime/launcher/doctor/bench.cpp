#include "doctor/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"

namespace dtrain::run {
namespace {

std::string limit_row(const char* name, double value, const char* unit, const std::string& text) {
  char start[96];
  std::snprintf(start, sizeof start, "  %-16s  %8.*f %-7s  ", name, value < 100 ? 1 : 0, value, unit);
  return start + text + "\n";
}

std::string limit_rows(const char* name, const std::map<std::string, double>& of_types) {
  std::string text;
  for (const char* type : {"float32", "bfloat16", "float16"}) {
    const auto found = of_types.find(type);
    if (found == of_types.end()) continue;
    text += limit_row(text.empty() ? name : "", found->second, "GFLOP/s", type);
  }
  return text;
}

std::string whole_percent(double value) {
  return std::to_string(std::lround(value)) + "%";
}

}  // namespace

RanksOfHost ranks_to_bench(const std::optional<scheduler::ClusterAgents>& cluster) {
  RanksOfHost ranks{.threads = 0, .ranks = 0};
  if (cluster) {
    for (const scheduler::ClusterAgent& agent : cluster->agents) {
      if (!agent.here) continue;
      for (const scheduler::ClusterSlot& slot : agent.slots) {
        if (slot.is_gpu() || slot.cpus.empty()) continue;
        ranks.cpus.push_back(slot.cpus);
        if (ranks.threads == 0) ranks.threads = slot.threads;
      }
    }
  }
  ranks.ranks = static_cast<int>(ranks.cpus.size());
  if (ranks.ranks == 0) return {.threads = 1, .ranks = static_cast<int>(host::physical_cores().size())};
  return ranks;
}

std::optional<double> matmul_cost(const profile::RankLimits& limits) {
  const auto fast = limits.gflops.find("float32");
  if (!limits.matmul_default_gflops || fast == limits.gflops.end()) return std::nullopt;
  return std::max(0.0, 100 * (1 - *limits.matmul_default_gflops / fast->second));
}

std::string render_limits(std::span<const profile::RankLimits> all) {
  std::string text;
  for (const profile::RankLimits& limits : all) {
    text += "the limits of a rank with " + count_of(limits.threads, "thread") + ", while " +
            (limits.ranks == 1 ? "no other works" : count_of(limits.ranks, "rank") + " work") +
            (limits.cpu.empty() ? "" : " (" + limits.cpu + ")") + "\n";
    if (profile::is_disturbed(limits)) {
      text += "  too low: other programs had " + profile::displaced_text(*limits.displaced_share) +
              " of the cores meanwhile; a launch measures again when the machine is quieter\n";
    }
    if (limits.memory_gb_s)
      text += limit_row("memory", *limits.memory_gb_s, "GB/s", "read and written (STREAM's triad)");
    text += limit_rows("matrix products", limits.gflops);
    if (const auto cost = matmul_cost(limits)) {
      text +=
          limit_row("", *limits.matmul_default_gflops, "GFLOP/s",
                    "float32 with optimizations.matmul: default, " + whole_percent(*cost) + " less; auto avoids it");
    }
    text += limit_rows("convolutions", limits.convolution_gflops);
    if (limits.all_reduce_gb_s)
      text +=
          limit_row("all-reduce", *limits.all_reduce_gb_s, "GB/s", "of each rank's gradients, through shared memory");
  }
  return text;
}

std::optional<Finding> judge_matmul(bool has_slow_path, std::span<const profile::RankLimits> known) {
  if (!has_slow_path) return std::nullopt;
  std::string text =
      "by default, the MKL in libtorch takes a slow path on processors of AMD; optimizations.matmul: auto ";
  text += "takes the fast one";
  for (const profile::RankLimits& limits : known) {
    if (const auto cost = matmul_cost(limits))
      return ok("matmul", text + " (default costs " + whole_percent(*cost) + " of the float32 rate)");
  }
  return ok("matmul", text + " (dtrain doctor --bench measures the difference)");
}

std::optional<Finding> check_matmul(const Variables& variables) {
  return judge_matmul(host::is_amd_with_avx2(), LimitsCache(cache_folder(variables)).of_this_machine());
}

}  // namespace dtrain::run
