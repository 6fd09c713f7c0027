// One dump of the monitor: its lines reach the disk, and it stays small in a long run. One thread, the monitor's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "monitor/format.h"
#include "ring.h"

namespace dtrain::profile {

// Writes the lines of one dump. Losing records must never stop the monitor: it counts lines that cannot be written
// (disk full), keeps the cause and tries again; once writing works, a "lost" record has the number of missing lines.
class DumpWriter {
 public:
  DumpWriter(std::filesystem::path path, const Clock& clock) : path_(std::move(path)), clock_(clock) {}

  // Writes whole lines, each ended by a newline.
  void write(std::string_view lines);
  // The end of the file, for replace(); empty: lines are missing there.
  struct Mark {
    std::uintmax_t size = 0;
    std::uint64_t lost = 0;
  };
  std::optional<Mark> mark();
  std::uintmax_t written_since(const Mark& mark) const;  // bytes
  // Replaces all lines since `mark` by `lines`. False: some of the old lines were lost, or `lines` are longer, or they
  // cannot be written; then the old lines stay.
  bool replace(const Mark& mark, std::string_view lines);
  // Makes written lines durable: they survive a crash of the machine.
  void sync();

  std::uint64_t lost() const { return lost_; }
  // Returns the first error, which names the path.
  const std::optional<std::string>& error() const { return error_; }

 private:
  bool append(std::string_view lines);

  std::filesystem::path path_;
  const Clock& clock_;
  std::unique_ptr<LineAppender> file_;
  std::uintmax_t size_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t lost_unreported_ = 0;
  Nanoseconds next_attempt_{0};
  std::optional<std::string> error_;
};

// The sums of a dump window: its `window` record.
class DumpWindow {
 public:
  DumpWindow() { record.loader.pinned = 0; }
  // Adds a step, collective, scope or loader record; ignores others.
  void add(const Record& record);
  // add() does not set first_batch, last_batch, epoch, start_ns, end_ns, outliers and outliers_folded: the caller does.
  WindowRecord record;

 private:
  void add_step(const StepRecord& step);
  void add_collective(const CollectiveRecord& collective);
  void add_loader(const LoaderRecord& loader);
  void add_scope(const ScopeRecord& scope);

  double mean_ns_ = 0;  // Welford's running mean of the steps' durations
};

// Finds steps that take much longer than those before them, by median and median absolute deviation of the last steps.
// These are robust, so neither a stall nor a phase of noise hides the next. One thread.
class OutlierTest {
 public:
  static constexpr std::size_t kRecentSteps = 512;
  static constexpr std::int64_t kDeviations = 8;      // median absolute deviations above the median …
  static constexpr std::int64_t kShareOfMedian = 10;  // and a tenth of the median
  static constexpr std::size_t kFewestSteps = 32;     // with fewer steps, no step is an outlier
  static constexpr std::size_t kRenewalSteps = 32;    // the threshold is found again after so many

  // Returns true if a step's duration is an outlier, and adds it to the last steps.
  bool is_outlier(std::int64_t wall_ns);

 private:
  void renew();

  std::array<std::int64_t, kRecentSteps> recent_{};
  std::size_t seen_ = 0;
  std::int64_t threshold_ns_ = 0;
  std::vector<std::int64_t> scratch_;
};

using StepRecords = std::vector<Record>;  // of one step, the step's own record last

// The open window. It is not nested, because clang does not let an optional make a nested class with defaults.
struct OpenWindow {
  std::optional<DumpWriter::Mark> mark;  // start of its lines
  std::int64_t begin = 0, end = 0;       // its first step and the step after its last, counted from the dump's first
  DumpWindow sums;
  bool empty = true;
  StepRecords current;                               // of the current step
  std::multimap<std::int64_t, StepRecords> longest;  // outliers by duration, as many as may be kept
  LineBuffer others;
};

// Bounds the records of one rank in its dump: the first steps stay in full; later steps are in full until their window
// ends and are then replaced by its sums and outliers ("Bounded dumps" in docs/profile-format.md). At any moment all
// records are in the file or in the lines that flush() will write, so no window is lost when the rank or this process
// ends.
class BoundedDump {
 public:
  static constexpr std::int64_t kStepsInFull = 10'000;
  static constexpr std::int64_t kShortestWindow = 100;  // steps
  static constexpr std::int64_t kOutlierShare = 20;     // at most a 20th of a window's steps stays in full …
  static constexpr std::int64_t kFewestOutliers = 5;    // … or so many steps if that is more

  // Tests keep fewer steps in full. `first_batch`: the rank's first step if an earlier monitor has seen it; otherwise
  // the next step is the first.
  explicit BoundedDump(DumpWriter& writer, std::int64_t steps_in_full = kStepsInFull,
                       std::optional<std::int64_t> first_batch = std::nullopt)
      : writer_(writer), steps_in_full_(steps_in_full), first_batch_(first_batch), next_window_(steps_in_full) {}

  void add(const Record& record);
  // Adds lines of other kinds, which no window replaces. Each ends with a newline.
  void add_lines(std::string_view lines);
  // Writes the added lines. Call it often: add() alone writes only at the end of a window, or when many lines wait.
  void flush();
  std::int64_t last_batch() const { return last_batch_; }  // the last step that ended; 0: none

 private:
  std::int64_t window_length(std::int64_t begin) const;
  void open(std::int64_t step);
  void close();
  void end_step(const Record& record);

  DumpWriter& writer_;
  const std::int64_t steps_in_full_;
  LineBuffer buffer_;
  OutlierTest outliers_;
  std::optional<OpenWindow> open_;
  std::optional<std::int64_t> first_batch_;
  std::int64_t last_batch_ = 0;
  std::int64_t next_window_;  // its first step, counted from the first of the dump
};

}  // namespace dtrain::profile
