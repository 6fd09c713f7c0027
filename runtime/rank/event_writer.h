// Rank 0's TensorBoard events, written while the run trains. Scalars are appended at once, like the lines of
// metrics.jsonl. Pictures and histograms go to a thread that encodes and appends them when the processor has time for
// it, so that no step waits. A full disk, or more pictures than that thread keeps up with, does not end the training:
// lost events are counted. The training thread makes all calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/profile/event_file.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
