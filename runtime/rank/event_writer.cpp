#include "event_writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace dtrain::run {
namespace {

// Pictures and values that wait for the thread; more are lost.
constexpr std::size_t kMostBytes = 256u << 20;

// Lowers the priority of this thread alone.
void take_least_processor_time() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLowest);
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
  if (!thread_.joinable()) thread_ = std::thread([this] { write_waiting(); });
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

}  // namespace dtrain::run
