// libtorch comes with gloo inside but without its headers. These declare as much as libtorch's own headers need to
// name.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
