// The line of a program's own code that has issued an operation, for errors and records.
//
// The extension for Python finds it, so that this library does without Python. In other programs no line is known.
#pragma once

#include <array>

namespace dtrain::torch_distributed {

struct SourceLine {
  std::array<char, 128> file{};  // the end of its path, if that is longer
  std::array<char, 48> function{};
  int number = 0;  // 0: unknown
};

// `find` returns the line at which the calling thread is, outside of libraries of training. It is called for each
// operation, without a lock.
void set_source_line_finder(SourceLine (*find)());

}  // namespace dtrain::torch_distributed
