// The benchmark's side of a contestant: processes that make steps on command (see stepper.h), one FIFO pair a rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {

// A folder that goes with its object.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~ScratchFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class Contestant {
 public:
  // Makes FIFOs `<base>R.commands` and `<base>R.replies` for each rank.
  Contestant(std::string base, int ranks);

  // Makes `steps` steps; a step's time is that of its slowest rank, in nanoseconds. `command` goes before the number.
  std::vector<std::int64_t> steps(int steps, const std::string& command = {});
  // Starts `steps` steps and does not wait for them.
  void begin(int steps) { end(std::to_string(steps)); }
  void end(const std::string& command);
  // For a rank that is a run of its own, and so rank 0 there: renames its FIFOs and returns the base it finds them by.
  std::string give_own_world(int rank);
  const std::string& base() const { return base_; }

 private:
  std::string read_line(std::size_t rank);

  std::string base_;
  std::vector<UniqueFd> commands_;
  std::vector<UniqueFd> replies_;
  std::vector<std::string> pending_;
};

// Copies what the contestants have printed to standard error.
void show_log(const std::filesystem::path& file);

double median_of(std::vector<double> values);

}  // namespace dtrain::bench
