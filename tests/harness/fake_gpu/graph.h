// What does a captured graph consist of, and what does a replay do?
//
// While a graph is captured its kernels do compute, because only they know the shapes of their results. At the end all
// memory they wrote, the clocks of the streams and the random generators are put back: nothing has happened. Operations
// in the graph are ordered among each other by the clocks of the capture; a replay is one operation that touches all
// that they touch, and that goes through them in the order of the capture. It blocks nothing: where one of them ends
// later (of NCCL), the rest of the replay comes later, too.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include <ATen/core/Generator.h>

#include "streams.h"
#include "unfinished.h"

namespace dtrain::test::fake_gpu {

using Node = std::function<void(const Access& replay)>;
// Of what ends later; it is called when the replay is launched.
using LateNode = std::function<std::unique_ptr<Operation>(const Access& replay)>;

// In which calls is the host refused that could spoil a capture? Always where they wait for a captured stream or event.
enum class CaptureMode {
  kGlobal,       // in all that wait or ask, on any thread
  kThreadLocal,  // in those, on the capturing thread
  kRelaxed       // in no others
};

class Graph {
 public:
  Graph(int number, Stream& origin, CaptureMode mode);

  int number() const { return number_; }
  const Stream& origin() const { return *joined_.front().stream; }

  // The stream waits for an event of the capture, and belongs to it from now on.
  void join(Stream& stream);
  std::vector<Conflict> touch(Range range, bool writes, const Access& now, const Clock& known);
  void add(Node node) { steps_.push_back({std::move(node), nullptr}); }
  void add_late(LateNode node) { steps_.push_back({nullptr, std::move(node)}); }
  // What is not allowed in a capture ends it.
  [[noreturn]] void refuse(int code, const std::string& text);
  void invalidate() { valid_ = false; }
  // Throws once something has ended the capture.
  void check_valid() const;
  // Whether the calling thread must not wait for anything, nor ask.
  bool refuses_this_thread() const;
  void end_capture();
  // Memory, clocks and generators are as before the capture.
  void put_back();
  // Of a graph that is shared, because it may be destroyed before the replay ends.
  static void replay(const std::shared_ptr<const Graph>& graph, Stream& stream);

 private:
  friend class Replay;

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

  struct Step {
    Node run;
    LateNode begin;
  };

  bool all_joined() const;
  void touch_all(const Access& now, const Clock& known) const;

  const int number_;
  const CaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool valid_ = true;
  std::vector<Joined> joined_;
  Shadow shadow_;
  std::vector<Step> steps_;
  std::vector<Use> uses_;
  std::vector<Before> before_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> generators_;
};

class Graphs {
 public:
  int begin(CaptureMode mode);
  int end();
  void replay(int number);
  void destroy(int number);
  // The graph if it is being captured, else nullptr.
  Graph* capturing(int number);
  // Ends all captures.
  void abandon();
  // Throws where a capture is under way that forbids the calling thread to wait for a device or to ask it.
  void refuse_host(std::string_view what);

 private:
  int captures_ = 0;
  std::map<int, std::unique_ptr<Graph>> capturing_;
  std::map<int, std::shared_ptr<Graph>> done_;
};

}  // namespace dtrain::test::fake_gpu
