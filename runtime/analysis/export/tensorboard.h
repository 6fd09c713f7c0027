// TensorBoard's event files: TFRecords (a length, a message, a CRC-32C of each), whose messages are protocol buffers of
// type tensorflow.Event. Only scalars are written, so the few fields they need are encoded by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"

namespace dtrain::analysis {

using Scalars = std::vector<std::pair<std::string, double>>;  // by tag

class EventFile {
 public:
  // A new file in `folder`, named as TensorBoard looks for them. What is there of an earlier export goes.
  EventFile(const std::filesystem::path& folder, double wall_s);
  void add(double wall_s, std::int64_t step, const Scalars& scalars);
  void finish() { flush(); }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t values() const { return values_; }

 private:
  void record(std::string_view message);
  void flush();

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string buffer_;
  std::int64_t values_ = 0;
};

}  // namespace dtrain::analysis
