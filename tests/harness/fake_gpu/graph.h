// What does a captured graph consist of, and what does a replay do?
//
// While a graph is captured its kernels do compute, because only they know the shapes of their results. At the end all
// memory they wrote, the clocks of the streams and the random generators are put back: nothing has happened. Operations
// in the graph are ordered among each other by the clocks of the capture; a replay is one operation that touches all
// that they touch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>

#include "streams.h"

namespace dtrain::test::fake_gpu {

using Node = std::function<void(const Access& replay)>;

class Graph {
 public:
  Graph(int number, Stream& origin);

  int number() const { return number_; }
  const Stream& origin() const { return *joined_.front().stream; }

  // The stream waits for an event of the capture, and belongs to it from now on.
  void join(Stream& stream);
  std::vector<Conflict> touch(Range range, bool writes, const Access& now, const Clock& known);
  void add(Node node) { nodes_.push_back(std::move(node)); }
  // What is not allowed in a capture ends it.
  [[noreturn]] void refuse(int code, const std::string& text);
  void invalidate() { valid_ = false; }
  void end_capture();
  // Memory, clocks and generators are as before the capture.
  void put_back();
  void replay(Stream& stream);

 private:
  struct Joined {
    Stream* stream = nullptr;
    Clock clock;
    double microseconds = 0;
  };
  struct Use {
    Range range;
    bool writes = false;
    std::string_view what;
    std::uint64_t allocation = 0;
  };
  struct Before {
    std::uintptr_t begin = 0;
    std::vector<std::byte> bytes;
  };

  bool all_joined() const;

  const int number_;
  bool valid_ = true;
  std::vector<Joined> joined_;
  Shadow shadow_;
  std::vector<Node> nodes_;
  std::vector<Use> uses_;
  std::vector<Before> before_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> generators_;
};

class Graphs {
 public:
  void begin();
  int end();
  void replay(int number);
  void destroy(int number);
  // The graph if it is being captured, else nullptr.
  Graph* capturing(int number);
  // Ends all captures.
  void abandon();
  // Throws if anything is being captured: the host must neither wait for a device nor ask it.
  void refuse_host(std::string_view what);

 private:
  int captures_ = 0;
  std::map<int, std::unique_ptr<Graph>> capturing_;
  std::map<int, std::shared_ptr<Graph>> done_;
};

}  // namespace dtrain::test::fake_gpu
