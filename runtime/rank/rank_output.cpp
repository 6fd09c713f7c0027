#include "rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"

namespace dtrain::rank {

namespace {

constexpr auto kCopyPeriod = std::chrono::milliseconds(50);
constexpr auto kProgressPeriod = std::chrono::milliseconds(200);
constexpr auto kLookPeriod = std::chrono::milliseconds(500);

void flush_streams() {
  std::cout.flush();
  std::fflush(nullptr);
}

}  // namespace

void RankEvents::open(const std::filesystem::path& file, int rank, const std::string& host) {
  const std::scoped_lock lock(mutex_);
  if (!file_) file_ = std::make_unique<EventLog>(file, clock_, rank, host);
}

EventLog* RankEvents::file() {
  const std::scoped_lock lock(mutex_);
  return file_.get();
}

void RankEvents::write(const std::string& event, const Json& fields) {
  file()->write(event, fields);
}

void RankEvents::try_write(const std::string& event, const Json& fields) {
  EventLog* const open_file = file();
  if (!open_file) return;
  try {
    open_file->write(event, fields);
  } catch (const std::exception& error) {
    log_->error("cannot write the event '{}': {}", event, error.what());
  }
}

void MetricsLog::write(const Json& line) {
  Json full = {{"time", format_utc(clock_.wall())}};
  for (const auto& [key, value] : line.items()) full[key] = value;
  bytes_.reset();
  try {
    file_.append(to_line(full) + "\n");
  } catch (const SystemError& error) {
    if (lost_++ > 0) return;
    log_->warn("metrics are missing from the run's folder: {}; training goes on, and what is lost is counted",
               error.what());
  }
}

std::int64_t MetricsLog::bytes() {
  if (bytes_) return *bytes_;
  std::error_code code;
  const auto size = std::filesystem::file_size(file_.path(), code);
  bytes_ = code ? 0 : static_cast<std::int64_t>(size);
  return *bytes_;
}

void MetricsLog::cut(std::int64_t wanted) {
  const std::int64_t there = bytes();
  if (there < wanted) {
    log_->warn("{} has {} bytes, but had {} when the checkpoint was taken: metrics of earlier batches are missing",
               file_.path().string(), there, wanted);
    return;
  }
  bytes_.reset();
  if (::truncate(file_.path().c_str(), wanted) != 0) throw SystemError("cut " + file_.path().string(), errno);
}

void MetricsLog::report_losses(RankEvents& events) const {
  if (lost_ > 0) events.try_write("metrics_lost", {{"count", lost_}});
}

LogRedirect::LogRedirect(const std::filesystem::path& log, int rank, std::string prefix, bool terminal,
                         const Clock& clock)
    : log_(log), output_(duplicate(STDOUT_FILENO)), error_(duplicate(STDERR_FILENO)) {
  const UniqueFd file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) throw SystemError("cannot write the log " + log.string(), errno);
  screen_ = std::make_unique<Screen>(output_.get(), terminal && ::isatty(output_.get()), clock);
  std::signal(SIGPIPE, SIG_IGN);  // training goes on if the screen can no longer be written
  flush_streams();
  ::dup2(file.get(), STDOUT_FILENO);
  ::dup2(file.get(), STDERR_FILENO);
  // Whole lines, in the order in which they are printed: C's standard output to a file would be buffered in blocks.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  thread_ = start_thread("the log's copy on the screen", [this, log, rank, prefix = std::move(prefix)] {
    LogTail tail;
    tail.add(rank, log);
    const auto show = [&](int, std::string_view line) { screen_->line(prefix + std::string(line)); };
    while (!stop_) {
      tail.poll(show);
      std::this_thread::sleep_for(kCopyPeriod);
    }
    tail.finish(show);
  });
}

LogRedirect::~LogRedirect() {
  stop_copying();
  ::dup2(output_.get(), STDOUT_FILENO);
  ::dup2(error_.get(), STDERR_FILENO);
  end_torn_line(log_);
}

void LogRedirect::stop_copying() {
  flush_streams();
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void LogRedirect::original_error(std::string_view text) const {
  write_all(error_.get(), text);
}
void LogRedirect::original_output(std::string_view text) const {
  write_all(output_.get(), text);
}

void RankFiles::look_for_folder(const Clock& clock, const Logger& log) {
  const Nanoseconds now = clock.monotonic();
  if (said_gone || (looked && now - *looked < kLookPeriod)) return;
  looked = now;
  const std::string gone = watch.gone();
  if (gone.empty()) return;
  said_gone = true;
  log->error("{}", watch.warning(gone));
  events.try_write("folder_gone", {{"cause", gone}});
}

double ProgressReport::seconds_left(const Progress& progress, Nanoseconds now) {
  if (!first_time_) {
    first_time_ = now;
    first_batch_ = progress.batch;
  }
  const double seconds = to_seconds(now - *first_time_);
  const auto done = static_cast<double>(progress.batch - first_batch_);
  if (done <= 0 || seconds <= 0) return -1;
  return seconds / done * static_cast<double>(progress.total_batches - progress.batch);
}

void ProgressReport::report(const Progress& progress) {
  const Nanoseconds now = clock_.monotonic();
  Progress full = progress;
  full.seconds_left = seconds_left(progress, now);
  if (now - shown_ < kProgressPeriod && progress.batch != progress.total_batches) return;
  shown_ = now;
  show_(full);
}

namespace {

// Pictures and values that wait for the thread; more are lost.
constexpr std::size_t kMostBytes = 256u << 20;

// Lowers the priority of this thread alone.
void take_least_processor_time() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLowest);
}

// The time limit to compare clocks with rank 0: the few round trips take this long only if something else is wrong.
constexpr std::chrono::seconds kClockTimeout{2};
constexpr std::chrono::seconds kFlushTimeout{10};
constexpr std::chrono::seconds kFlushTimeoutAfterFailure{2};

profile::Recorder::Options recorder_options(const Recording::Options& options, const comm::World& world,
                                            const std::optional<comm::ClockOffset>& compared) {
  profile::Recorder::Options result{
      .rank = world.rank, .world_size = world.size, .monitor_socket = options.monitor_socket, .header = options.header};
  if (compared) {
    result.header["rank_0_clock"] = {{"time_ns", compared->time.count()},
                                     {"offset_ns", compared->offset.count()},
                                     {"error_ns", compared->error.count()}};
  }
  return result;
}

}  // namespace

EventWriter::~EventWriter() {
  finish();
}

double EventWriter::wall_s() const {
  return to_seconds(clock_.wall());
}

void EventWriter::begin_after(std::int64_t batches) {
  {
    const std::scoped_lock lock(file_mutex_);
    first_batch_ = batches == 0 ? 0 : batches + 1;
    if (file_) file_->append(profile::restart_event(wall_s(), first_batch_));
  }
  {
    const std::scoped_lock lock(mutex_);
    if (!begun_ && batches > 0) {
      waiting_.clear();
      waiting_bytes_ = 0;
    }
    begun_ = true;
  }
  changed_.notify_one();
}

void EventWriter::add_metrics(const Json& line) {
  const profile::Scalars scalars = profile::scalars_of(line);
  if (scalars.empty()) return;
  const double now = wall_s();
  append(now, profile::scalars_event(now, line.value("batch", std::int64_t{0}), scalars));
}

void EventWriter::add(const std::string& name, std::int64_t batch, profile::Picture picture) {
  const std::size_t bytes = picture.pixels.size();
  enqueue({name, batch, wall_s(), std::move(picture), bytes});
}

void EventWriter::add(const std::string& name, std::int64_t batch, std::vector<float> values) {
  const std::size_t bytes = values.size() * sizeof(float);
  enqueue({name, batch, wall_s(), std::move(values), bytes});
}

void EventWriter::enqueue(Waiting waiting) {
  std::unique_lock lock(mutex_);
  if (!waiting_.empty() && waiting_bytes_ + waiting.bytes > kMostBytes) {
    lock.unlock();
    return lose("pictures and histograms are logged faster than they are written: log them in fewer batches");
  }
  waiting_bytes_ += waiting.bytes;
  waiting_.push_back(std::move(waiting));
  if (!thread_.joinable()) thread_ = start_thread("the writer of event files", [this] { write_waiting(); });
  lock.unlock();
  changed_.notify_one();
}

void EventWriter::write_waiting() {
  take_least_processor_time();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || (begun_ && !waiting_.empty()); });
    if (waiting_.empty() || !begun_) return;
    const Waiting& next = waiting_.front();  // stays where it is while others are added behind it
    lock.unlock();
    try {
      append(next.wall_s, encode(next));
    } catch (const std::exception& error) {
      lose("'" + next.name + "': " + error.what());
    }
    lock.lock();
    waiting_bytes_ -= next.bytes;
    waiting_.pop_front();
  }
}

std::string EventWriter::encode(const Waiting& waiting) {
  if (const auto* const picture = std::get_if<profile::Picture>(&waiting.content)) {
    return profile::picture_event(waiting.wall_s, waiting.batch, waiting.name, *picture);
  }
  const profile::Histogram histogram(std::get<std::vector<float>>(waiting.content));
  return profile::histogram_event(waiting.wall_s, waiting.batch, waiting.name, histogram);
}

void EventWriter::append(double wall_s, const std::string& event) {
  try {
    const std::scoped_lock lock(file_mutex_);
    if (!file_) {
      file_.emplace(profile::EventFile::for_run(folder_, wall_s));
      file_->append(profile::restart_event(wall_s, first_batch_));
    }
    file_->append(event);
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

void EventWriter::lose(const std::string& why) {
  {
    const std::scoped_lock lock(file_mutex_);
    if (lost_++ > 0) return;
  }
  log_->warn("TensorBoard events are missing from the run's folder: {}; training goes on, and what is lost is counted",
             why);
}

std::int64_t EventWriter::finish() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  ends_ = false;
  const std::scoped_lock lock(file_mutex_);
  return lost_;
}

Recording::Recording(Options options, Membership& membership, RankEvents& events, const Clock& clock, Logger log)
    : membership_(membership),
      events_(events),
      log_(std::move(log)),
      first_comparison_(membership.control().measure_clock(kClockTimeout)),
      monitor_(std::move(options.monitor)),
      monitor_started_(std::move(options.monitor_started)),
      recorder_(recorder_options(options, membership.world(), first_comparison_), clock, options.process_started) {
  record_clock(first_comparison_);
}

Recording::~Recording() {
  if (monitor_) monitor_->detach();
}

void Recording::check() {
  record_clock(membership_.control().take_clock());
  look_after_monitor();
  warn_of_losses();
}

void Recording::finish() {
  record_clock(membership_.control().measure_clock(kClockTimeout));
  recorder_.mark(profile::RunMark::kFinalizationEnd);
  flush(kFlushTimeout);
}

void Recording::flush_after_failure() {
  flush(kFlushTimeoutAfterFailure);
}

void Recording::flush(std::chrono::milliseconds timeout) {
  try {
    look_after_monitor();
    recorder_.flush(timeout);
  } catch (const std::exception& lost) {
    log_->warn("the last records were not confirmed: {}", lost.what());
    events_.try_write("records_unconfirmed", {{"reason", lost.what()}});
  }
}

void Recording::report_losses() {
  warn_of_losses();
  if (recorder_.lost() == 0) return;
  events_.try_write("records_lost", {{"count", recorder_.lost()}, {"reason", recorder_.write_error().value_or("")}});
}

void Recording::record_clock(const std::optional<comm::ClockOffset>& compared) {
  if (!compared) return;
  recorder_.clock({compared->time.count(), compared->offset.count(), compared->error.count(), compared->round_trips});
}

void Recording::look_after_monitor() {
  const bool is_here = recorder_.monitor_is_here();
  if (monitor_ && !is_here) {
    if (const auto change = monitor_->look()) {
      log_->warn("{}", change->text());
      if (change->ended)
        events_.try_write("agent_ended", {{"agent", monitor_->id()}, {"status", change->ended->describe()}});
      if (change->started > 0) monitor_started_(change->started);
    }
  }
  if (is_here == std::exchange(monitor_is_here_, is_here) || membership_.world().local_rank != 0) return;
  if (is_here) {
    log_->info("the monitor of this host is back");
  } else {
    log_->warn(
        "the monitor of this host has ended or does not answer; training goes on, records wait in memory until "
        "it "
        "is back (see logs/agent-*.log in the run's folder)");
  }
}

// The monitor reports a loss to one rank of the host.
void Recording::warn_of_losses() {
  const auto& error = recorder_.write_error();
  if (!error || std::exchange(warned_, true)) return;
  log_->warn(
      "records of this host's ranks are missing from the profile: {}; training goes on, and what is lost is counted",
      *error);
}

}  // namespace dtrain::rank
