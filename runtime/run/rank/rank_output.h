// The output of a rank into the run's folder and onto the screen, besides its records: its events, its log, and on rank
// 0 metrics and progress. Each part states which threads may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/run/run_folder.h"
#include "folder/event_log.h"
#include "folder/folder_watch.h"
#include "folder/run_lock.h"
#include "folder/screen.h"
#include "rank/event_writer.h"

namespace dtrain::run {

// This rank's lines of events.jsonl. Thread safe: the threads of the launcher's link and of the control plane write
// events as well.
class RankEvents {
 public:
  RankEvents(const Clock& clock, Logger log) : clock_(clock), log_(std::move(log)) {}

  // Opens the file at the first call. SystemError if it cannot.
  void open(const std::filesystem::path& file, int rank, const std::string& host);
  // SystemError if the disk is full. The file must be open.
  void write(const std::string& event, const Json& fields = {});
  // Logs an error instead of throwing it. Does nothing before open().
  void try_write(const std::string& event, const Json& fields = {});

 private:
  EventLog* file();

  const Clock& clock_;
  const Logger log_;
  std::mutex mutex_;
  std::unique_ptr<EventLog> file_;
};

// Rank 0's metrics.jsonl. A full disk does not end the training: lost lines are counted. The training thread makes all
// calls.
class MetricsLog {
 public:
  // SystemError if the file cannot be opened.
  MetricsLog(const std::filesystem::path& path, const Clock& clock, Logger log)
      : file_(path), clock_(clock), log_(std::move(log)) {}

  // Appends the line, with the time as its first key. Warns when the first line is lost.
  void write(const Json& line);
  std::int64_t bytes() const;
  // See RankSession::cut_metrics().
  void cut(std::int64_t bytes);
  // Writes the number of lost lines as an event.
  void report_losses(RankEvents& events) const;

 private:
  LineAppender file_;
  const Clock& clock_;
  const Logger log_;
  std::int64_t lost_ = 0;
};

// Redirects what a rank prints (file descriptors 1 and 2, also from libraries) into its log file. A thread copies new
// lines of the file to the screen on which the rank was started. The destructor restores both file descriptors and ends
// a last line that a full disk has cut short.
class LogRedirect {
 public:
  // `prefix` goes before every line on the screen. `terminal`: the progress may be redrawn there.
  LogRedirect(const std::filesystem::path& log, int rank, std::string prefix, bool terminal, const Clock& clock);
  ~LogRedirect();
  LogRedirect(const LogRedirect&) = delete;
  LogRedirect& operator=(const LogRedirect&) = delete;

  Screen& screen() { return *screen_; }
  int output() const { return output_.get(); }  // the previous standard output
  // Shows the rest of the log, then stops copying it.
  void stop_copying();
  // Writes to the previous standard error.
  void original_error(std::string_view text) const;
  // Writes to the previous standard output.
  void original_output(std::string_view text) const;

 private:
  std::filesystem::path log_;
  UniqueFd output_;  // file descriptors 1 and 2 as they were
  UniqueFd error_;
  std::unique_ptr<Screen> screen_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Rank 0's progress: estimates the remaining time and shows the progress a few times a second. The training thread
// makes all calls.
class ProgressReport {
 public:
  // `show` sends the progress to the launcher, or to the screen if there is none.
  ProgressReport(const Clock& clock, std::function<void(const Progress&)> show)
      : clock_(clock), show_(std::move(show)) {}
  void report(const Progress& progress);

 private:
  // Returns the remaining seconds by the rate of batches since the first report. Negative: not known yet.
  double seconds_left(const Progress& progress, Nanoseconds now);

  const Clock& clock_;
  const std::function<void(const Progress&)> show_;
  Nanoseconds shown_{0};
  std::optional<Nanoseconds> first_time_;
  std::int64_t first_batch_ = 0;
};

// The files that a rank has open in the run's folder.
struct RankFiles {
  RankFiles(const Clock& clock, const Logger& log) : events(clock, log) {}

  // To be called after each step on rank 0: says once that the folder is gone, within a second.
  void look_for_folder(const Clock& clock, const Logger& log);

  RunFolder folder;
  FolderWatch watch;
  std::optional<Nanoseconds> looked;  // the time of the last look_for_folder()
  bool said_gone = false;
  RunLock lock;                       // rank 0 without a launcher
  std::filesystem::path resume_from;  // without a launcher: the checkpoint that rank 0 has found; empty: none
  bool is_launchers_folder = true;    // false: this host has its own folder, which the launcher collects
  std::optional<LogRedirect> output;  // none if the launcher has redirected this process's output to the log file
  RankEvents events;
  std::optional<MetricsLog> metrics;       // rank 0
  std::optional<EventWriter> tensorboard;  // rank 0
};

}  // namespace dtrain::run
