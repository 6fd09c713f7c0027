// Findings of one rank: leaks, stalls.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/units.h"
#include "findings/make_findings.h"
#include "measure/memory_growth.h"
#include "measure/statistics.h"
#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

std::string growth_text(const MemoryGrowth& growth) {
  std::string text = fmt::format("its memory grew by {} in {} steps, and steadily", format_bytes(growth.grown_bytes),
                                 count_text(to_count(growth.steps)));
  if (growth.free_bytes && *growth.free_bytes > 0) {
    text += fmt::format("; the {} that its host has left last for {} more steps", format_bytes(*growth.free_bytes),
                        count_text(to_count(*growth.free_bytes / growth.bytes_per_step)));
  }
  return text;
}

// Most of what has grown is free on the heap.
bool is_fragmented(const MemoryGrowth& growth) {
  return growth.free_heap_bytes > 0.5 * growth.grown_bytes;
}

Finding fragmentation(const std::string& who, const MemoryGrowth& growth) {
  Finding finding;
  finding.id = "memory_fragmentation";
  finding.cause = "memory_fragmentation";
  finding.fault = true;
  finding.bytes_per_step = growth.bytes_per_step;
  finding.title = fmt::format("the heap of {} is fragmented: it grows by {} with every step", who,
                              format_bytes(growth.bytes_per_step));
  finding.evidence =
      growth_text(growth) + fmt::format("; {} of that is free, between pieces that are in use, and nothing fits there",
                                        format_bytes(std::min(growth.free_heap_bytes, growth.grown_bytes)));
  finding.advice =
      "allocate what lives long before the first step, or give the ranks another allocator: install jemalloc and set "
      "environment.environment_variables: [LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2]";
  return finding;
}

Finding leak(const std::string& who, const MemoryGrowth& growth) {
  if (is_fragmented(growth)) return fragmentation(who, growth);
  Finding finding;
  finding.id = "memory_leak";
  finding.cause = "memory_leak";
  finding.fault = true;
  finding.bytes_per_step = growth.bytes_per_step;
  finding.title = fmt::format("{} keeps {} more memory with every step", who, format_bytes(growth.bytes_per_step));
  finding.evidence = growth_text(growth);
  finding.advice =
      "look for what the trial holds on to between steps: tensors kept with their graphs (detach or item() what is "
      "logged), lists and caches that only grow";
  return finding;
}

// `when`: "at this interval", "in those steps".
std::string stall_advice(Phase phase, const std::string& when) {
  switch (phase) {
    case Phase::kDataloaderNext:
      return "look at what the data source does " + when + ": opening the next file, filling a shuffle buffer";
    case Phase::kAllreduceWait:
      return "look at the link at these moments: other traffic, retransmissions, a switch that fails over";
    case Phase::kCallbacks:
      return "do less in the callback that runs " + when + ", or hand it to another thread";
    default:
      return "look at what runs " + when +
             " within this phase: logging, synchronous input or output, clearing caches, a scheduled job on the host";
  }
}

}  // namespace

std::vector<Finding> find_leaks(const Evidence& evidence) {
  std::vector<Finding> findings;
  MemoryGrowth all;
  for (const RankProfile& rank : evidence.run.ranks) {
    const auto growth = find_growth(evidence.run, rank);
    if (!growth) continue;
    findings.push_back(leak(rank_name(rank), *growth));
    findings.back().rank = rank.rank;
    findings.back().host = rank.host;
    all.bytes_per_step += growth->bytes_per_step;
    all.grown_bytes += growth->grown_bytes;
    all.free_heap_bytes += growth->free_heap_bytes;
    all.steps = std::max(all.steps, growth->steps);
    all.free_bytes = growth->free_bytes;
  }
  const std::size_t ranks = evidence.run.ranks.size();
  if (findings.size() < 2 || 2 * findings.size() <= ranks) return findings;
  const auto count = static_cast<double>(findings.size());
  all.bytes_per_step /= count;
  all.grown_bytes /= count;
  all.free_heap_bytes /= count;
  const std::string who = findings.size() == ranks ? "each rank" : fmt::format("each of {} ranks", findings.size());
  return {leak(who, all)};
}

std::optional<Finding> find_stalling(const Evidence& evidence, const Analysis& analysis, const Stalls& stalls) {
  const RankProfile* const rank =
      stalls.rank >= 0 ? &evidence.run.ranks[static_cast<std::size_t>(stalls.rank)] : nullptr;
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    // A program that takes a rank's core now and then makes its steps stall, too.
    if (rank != nullptr && straggler.rank == rank->rank && straggler.cause == "cpu_contention") return std::nullopt;
  }
  const bool regular = stalls.every_batches || stalls.every_s;
  if (!regular && stalls.phase == Phase::kDataloaderNext) return std::nullopt;  // a slow loader
  Finding finding;
  finding.id = "stalls";
  finding.cause = regular ? "periodic_stalls" : "stalls";
  finding.fault = true;
  finding.seconds = stalls.seconds;
  if (rank != nullptr) {
    finding.rank = rank->rank;
    finding.host = rank->host;
  }
  const std::string when = stalls.every_batches ? fmt::format("every {:.0f} batches", *stalls.every_batches)
                           : stalls.every_s     ? fmt::format("every {}", seconds_text(*stalls.every_s))
                                                : fmt::format("{} times", count_text(stalls.events));
  const std::string where = stalls.phase == Phase::kAllreduceWait ? "the exchange" : std::string(name_of(stalls.phase));
  finding.title =
      fmt::format("{} for {}, {}, in {}: {}", rank != nullptr ? rank_name(*rank) + " stalls" : "the run stalls",
                  seconds_text(stalls.mean_excess_s()), when, where, seconds_text(stalls.seconds));
  finding.evidence =
      fmt::format("{} times a batch took {} longer (mean; median {}) than the median batch of {}: {} in all",
                  count_text(stalls.events), seconds_text(stalls.mean_excess_s()), seconds_text(stalls.median_excess_s),
                  seconds_text(stalls.step_s), seconds_text(stalls.seconds));
  if (stalls.other_events > 0) {
    finding.evidence +=
        fmt::format("; {} others, at no regular intervals, are not counted", count_text(stalls.other_events));
  }
  finding.advice = stall_advice(stalls.phase, regular ? "at this interval" : "in those steps");
  return finding;
}

}  // namespace dtrain::analysis
