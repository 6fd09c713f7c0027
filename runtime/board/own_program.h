// Commands of dtrain that the board calls. Any thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace dtrain::board {

struct Called {
  bool success = false;
  std::string output, errors;  // printed on standard output and error; the latter has the status if it is empty
};

struct CallOptions {
  std::filesystem::path working_folder;  // empty: the board's
  std::chrono::minutes longest{2};
  bool in_background = false;  // at the lowest priority
};

// Runs `dtrain ARGUMENTS` to its end. Error: it took too long, and was killed. SystemError: it cannot be started.
Called call_dtrain(const std::vector<std::string>& arguments, const CallOptions& options);

}  // namespace dtrain::board
