// TensorBoard's event files: TFRecords (a length, a message, a CRC-32C of each), whose messages are protocol buffers of
// type tensorflow.Event. The few fields that dtrain writes are encoded by hand. `dtrain export` writes whole files from
// the records of a run; rank 0 appends to a file while the run trains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain::profile {

using Scalars = std::vector<std::pair<std::string, double>>;  // by tag

// Returns what TensorBoard shows of a line of metrics.jsonl: "training/loss", "validation/accuracy",
// "training/learning_rate".
Scalars scalars_of(const Json& metrics_line);

// A picture of 8 bits a channel, row by row from the top; the channels of a pixel lie side by side.
struct Picture {
  std::int64_t height = 0, width = 0;
  int channels = 1;  // 1: grey, 3: red, green and blue, 4: with opacity
  std::string pixels;
};

// A histogram of values in bins as TensorFlow and PyTorch divide them: the limits grow by a factor of 1.1 from 1e-12 to
// 1e20, on both sides of zero.
class Histogram {
 public:
  // Values that are not finite are left out. Reads each value once.
  explicit Histogram(std::span<const float> values);
  std::int64_t count() const { return count_; }  // of finite values
  // The message tensorflow.HistogramProto.
  std::string encoded() const;

 private:
  std::vector<std::int64_t> bins_;
  std::int64_t count_ = 0;
  double least_ = 0, greatest_ = 0, sum_ = 0, squares_ = 0;
};

// Events as messages, for EventFile::append(). `wall_s`: seconds since 1970. Errors: Error for a picture whose number
// of pixels is not that of its size.
std::string scalars_event(double wall_s, std::int64_t step, const Scalars& scalars);
std::string picture_event(double wall_s, std::int64_t step, const std::string& tag, const Picture& picture);
std::string histogram_event(double wall_s, std::int64_t step, const std::string& tag, const Histogram& histogram);
// The event makes TensorBoard discard the values of the folder's earlier files from this step on.
std::string restart_event(double wall_s, std::int64_t first_step);

// One file. One thread at a time. SystemError if it cannot be written.
class EventFile {
 public:
  // Creates a file in `folder`, named as TensorBoard expects, which replaces those of an earlier export.
  static EventFile for_export(const std::filesystem::path& folder, double wall_s);
  // Creates a file beside those of earlier attempts of a run, which TensorBoard reads after them. Each event is written
  // at once. If a full disk leaves a part of an event, the part is removed: readers see whole events.
  static EventFile for_run(const std::filesystem::path& folder, double wall_s);

  void append(std::string_view event);
  void add(double wall_s, std::int64_t step, const Scalars& scalars);
  void finish() { flush(); }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t values() const { return values_; }

 private:
  EventFile(std::filesystem::path path, int extra_flags, double wall_s, bool at_once);
  void flush();

  std::filesystem::path path_;
  UniqueFd fd_;
  bool at_once_;
  std::string buffer_;
  std::int64_t values_ = 0;
};

// Returns the files that a run has written into `folder` by itself, the oldest first.
std::vector<std::filesystem::path> event_files_of_run(const std::filesystem::path& folder);

// The folder of a run's event files, and the name under which TensorBoard shows the run's metrics.
inline constexpr const char* kEventsFolder = "tensorboard";
inline constexpr const char* kMetricsEvents = "metrics";

}  // namespace dtrain::profile
