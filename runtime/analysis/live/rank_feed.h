// One rank's dump, of which the last seconds are kept. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_profile.h"
#include "live/file_tail.h"
#include "read/dump_line.h"

namespace dtrain::analysis {

// "Recent" is what ended in this time before the last step, and that many steps in any case.
inline constexpr std::int64_t kRecentNs = 10'000'000'000;
inline constexpr std::size_t kFewestRecent = 20;

class RankFeed final : private DumpHandler {
 public:
  // The lines that take the place of a window are some ten kilobytes; steps that come again are known by their times.
  static constexpr FileTail::Limits kLimits{.again = 64 << 10};

  RankFeed(int rank, const std::filesystem::path& path, FileTail::Limits limits = kLimits) : tail_(path, limits) {
    profile_.rank = rank;
  }

  void poll();

  // Only recent steps, and windows whose steps were not read one by one; of `memory` the last line.
  const RankProfile& profile() const { return profile_; }
  // The durations of the steps of each of profile().windows.
  const std::vector<profile::Sketch>& window_walls() const { return window_walls_; }
  // When the last step ended, on the rank's clock; 0: none has.
  std::int64_t last_step_end_ns() const { return last_end_ns_; }
  std::int64_t last_batch() const { return last_batch_; }
  std::int64_t last_epoch() const { return last_epoch_; }
  // A dump of a later version, which is not read.
  bool is_newer() const { return newer_; }
  bool is_incomplete() const { return incomplete_; }  // records are missing
  const FileTail& tail() const { return tail_; }

 private:
  void header(const Json& json) override;
  void step(const StepLine& line) override;
  void window(const WindowLine& line, const WindowSketches& sketches) override;
  void memory(const MemoryLine& line) override { profile_.memory = {line}; }
  void part(const PartLine& line) override { profile_.parts.push_back(line); }
  void dropped(std::int64_t) override { incomplete_ = true; }
  void lost(std::int64_t, const std::string&) override { incomplete_ = true; }
  void end(const EndLine& line) override { profile_.end = line; }
  void forget_steps();
  void forget_old();

  RankProfile profile_;
  std::vector<profile::Sketch> window_walls_;
  FileTail tail_;
  DumpLineReader reader_;
  std::int64_t last_end_ns_ = 0, last_batch_ = 0, last_epoch_ = 0;
  std::int64_t seen_before_ = 0;  // the last batch when poll() began
  bool newer_ = false, incomplete_ = false;
};

}  // namespace dtrain::analysis
