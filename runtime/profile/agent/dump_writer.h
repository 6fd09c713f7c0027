// Writes the lines of one dump. Losing records must never stop the agent: it counts lines that cannot be written (disk
// full), keeps the cause and tries again; once writing works, a "lost" record has the number of missing lines. One
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"

namespace dtrain::profile {

class DumpWriter {
 public:
  DumpWriter(std::filesystem::path path, const Clock& clock) : path_(std::move(path)), clock_(clock) {}

  // Writes whole lines, each ended by '
  // '.
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

}  // namespace dtrain::profile
