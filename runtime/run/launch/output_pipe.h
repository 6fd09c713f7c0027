// What a child process writes to one of its outputs, line by line, without ever waiting for it. One thread.
#pragma once

#include <functional>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class OutputPipe {
 public:
  // Makes the pipe and returns the end that the child writes to. SystemError.
  UniqueFd open();
  int fd() const { return fd_.get(); }  // readable when there is something; -1: it has ended
  // Hands over the lines that have come, without their newlines; at the end of the stream what follows the last one.
  void read(const std::function<void(const std::string& line)>& on_line);

 private:
  UniqueFd fd_;
  std::string partial_;  // a line that has not ended
};

}  // namespace dtrain::run
