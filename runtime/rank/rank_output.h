// A rank writes to the screen, and into the run's folder its log, events, metrics, TensorBoard events and records.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/profile/event_file.h"
#include "dtrain/profile/monitor_process.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/run_memory.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/trainer_status.h"
#include "membership.h"

namespace dtrain::rank {

// Rank 0's TensorBoard events, written while the run trains. Scalars are appended at once, like the lines of
// metrics.jsonl. Pictures and histograms go to a thread that encodes and appends them when the processor has time for
// it, so that no step waits. A full disk, or more pictures than that thread keeps up with, does not end the training:
// lost events are counted. The training thread makes all calls.

class EventWriter {
 public:
  // `folder`: of the event files; it is made with the first event.
  EventWriter(std::filesystem::path folder, const Clock& clock, Logger log)
      : folder_(std::move(folder)), clock_(clock), log_(std::move(log)) {}
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Training goes on after so many batches: TensorBoard is to discard later events of earlier attempts. Events added
  // before are written now, or discarded if an earlier attempt has written them at its start.
  void begin_after(std::int64_t batches);
  void add_metrics(const Json& line);
  void add(const std::string& name, std::int64_t batch, profile::Picture picture);
  void add(const std::string& name, std::int64_t batch, std::vector<float> values);
  // Waits until all events are written. Returns the number of lost events.
  std::int64_t finish();

 private:
  struct Waiting {
    std::string name;
    std::int64_t batch = 0;
    double wall_s = 0;
    std::variant<profile::Picture, std::vector<float>> content;
    std::size_t bytes = 0;
  };
  double wall_s() const;
  void enqueue(Waiting waiting);
  void write_waiting();  // the thread
  std::string encode(const Waiting& waiting);
  void append(double wall_s, const std::string& event);
  void lose(const std::string& why);

  const std::filesystem::path folder_;
  const Clock& clock_;
  const Logger log_;

  std::mutex file_mutex_;  // of these
  std::optional<profile::EventFile> file_;
  std::int64_t first_batch_ = 0;
  std::int64_t lost_ = 0;

  std::mutex mutex_;  // of these
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  bool begun_ = false;
  bool ends_ = false;
  std::thread thread_;
};

// The output of a rank into the run's folder and onto the screen, besides its records: its events, its log, and on rank
// 0 metrics and progress. Each part states which threads may use it.

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
  // The file's length, for which the file is looked at only where this object has changed it since the last call.
  std::int64_t bytes();
  // See RankSession::cut_metrics().
  void cut(std::int64_t bytes);
  // Writes the number of lost lines as an event.
  void report_losses(RankEvents& events) const;

 private:
  LineAppender file_;
  const Clock& clock_;
  const Logger log_;
  std::int64_t lost_ = 0;
  std::optional<std::int64_t> bytes_;
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

// The files that a rank has open in the run's folder, and what else it tells of the run.
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
  std::int64_t resume_step = 0;       // on rank 0: the batches that are done there
  RunMemory memory;
  bool is_launchers_folder = true;    // false: this host has its own folder, which the launcher collects
  std::optional<LogRedirect> output;  // none if the launcher has redirected this process's output to the log file
  RankEvents events;
  std::optional<MetricsLog> metrics;       // rank 0
  std::optional<EventWriter> tensorboard;  // rank 0
  std::optional<TrainerStatus> status;     // rank 0 without a launcher or a keeper
};

// The records of a rank besides its log: batches (through the monitor of its host), the offset of its clock
// from rank 0's, and the number of lost records. The training thread makes all calls.

class Recording {
 public:
  struct Options {
    std::string monitor_socket;
    std::unique_ptr<profile::KeptMonitor> monitor;  // if this rank has started it
    std::function<void(pid_t)> monitor_started;     // called after the monitor was started again
    Json header;                                    // the first line of the dump
    Nanoseconds process_started{0};                 // the time since then counts as initialization
  };
  // Connects to the monitor and compares the clocks, which is collective. The referenced objects must outlive
  // this object. Throws as profile::Recorder does.
  Recording(Options options, Membership& membership, RankEvents& events, const Clock& clock, Logger log);
  ~Recording();

  profile::Recorder& recorder() { return recorder_; }

  // Called in every step. Records a new comparison of clocks, and warns if records are lost or the monitor has
  // ended, which is then started again by its starter.
  void check();
  // Compares the clocks a last time and waits until all records are on disk; warns where that is not confirmed in time.
  void finish();
  // Does the same for a rank that fails, without comparing clocks.
  void flush_after_failure();
  // Writes the number of lost records as an event, which the summary counts: the dump may lack that line.
  void report_losses();

 private:
  void record_clock(const std::optional<comm::ClockOffset>& compared);
  void look_after_monitor();
  void flush(std::chrono::milliseconds timeout);
  void warn_of_losses();

  Membership& membership_;
  RankEvents& events_;
  const Logger log_;
  const std::optional<comm::ClockOffset> first_comparison_;
  std::unique_ptr<profile::KeptMonitor> monitor_;  // it outlives this process
  const std::function<void(pid_t)> monitor_started_;
  profile::Recorder recorder_;
  bool monitor_is_here_ = true;
  bool warned_ = false;
};

}  // namespace dtrain::rank
