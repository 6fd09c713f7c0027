// Reads one output of a child process line by line, without blocking. One thread.
#pragma once

#include <functional>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::run {

class OutputPipe {
 public:
  // Makes the pipe and returns its write end, for the child. SystemError.
  UniqueFd open();
  int fd() const { return fd_.get(); }  // readable when there is output; -1: the output has ended
  // Passes on the lines that have arrived, without newlines; at the end of the output also an incomplete last line.
  void read(const std::function<void(const std::string& line)>& on_line);

 private:
  UniqueFd fd_;
  std::string partial_;  // an incomplete line
};

}  // namespace dtrain::run
