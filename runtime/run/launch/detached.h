// `dtrain launch --detach`: the launch goes on in a process of its own session, which no terminal ends, with its output
// in a file; the one that was started waits until it hears that the task is in the ledger. Before other threads exist.
#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class Detached {
 public:
  // Returns twice, as fork does. SystemError.
  explicit Detached(const std::filesystem::path& log);

  bool is_launcher() const { return child_ == 0; }
  // By the one that goes on, once.
  void tell(const std::string& word);
  // By the other: the word. Error with what the log says, where the launcher ended without one.
  std::string hear();

 private:
  std::filesystem::path log_;
  pid_t child_ = -1;
  UniqueFd word_;
};

}  // namespace dtrain::run
