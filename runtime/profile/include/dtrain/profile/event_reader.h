// Reads the pictures and histograms of an event file (event_file.h), while its run writes it or later. A stranger may
// have written it: reading ends where an event is not whole or not right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace dtrain::profile {

struct LoggedEvent {
  enum class Kind { kRestart, kPicture, kHistogram };
  Kind kind = Kind::kRestart;
  std::int64_t step = 0;  // of a restart: values from this step on, in earlier files, count no more
  std::string tag;        // empty: a restart
  // Where the PNG file or the histogram lies in the event file.
  std::uint64_t offset = 0, bytes = 0;
};

// The bins of a histogram, as Histogram divides them.
struct HistogramBins {
  double least = 0, greatest = 0, count = 0, sum = 0;
  std::vector<double> limits, counts;  // the upper limit of each bin
};

// One thread at a time.
class EventReader {
 public:
  explicit EventReader(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }

  // Hands over the events that have come since the last call. SystemError, DataError: the file cannot be read.
  void read(const std::function<void(const LoggedEvent&)>& use);

 private:
  std::filesystem::path path_;
  std::uint64_t position_ = 0;
};

// Return what an event of the file has. DataError: it is not there, or longer than `most_bytes`.
std::string read_picture(const std::filesystem::path& file, const LoggedEvent& event, std::uint64_t most_bytes);
HistogramBins read_histogram(const std::filesystem::path& file, const LoggedEvent& event);

}  // namespace dtrain::profile
