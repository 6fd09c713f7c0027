// `dtrain launch --detach`: the launch continues in a process of its own session, which no terminal ends, with its
// output in a file. The first process waits until the task is in the ledger. Construct before other threads exist.
#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class Detached {
 public:
  // Returns in both processes, as fork() does. SystemError.
  explicit Detached(const std::filesystem::path& log);

  bool is_launcher() const { return child_ == 0; }
  // Sends `word` to the first process. Called once, by the process that continues.
  void tell(const std::string& word);
  // In the first process: waits for that text. Error with the end of the log if the launcher ended without sending it.
  std::string hear();

 private:
  std::filesystem::path log_;
  pid_t child_ = -1;
  UniqueFd word_;
};

}  // namespace dtrain::run
