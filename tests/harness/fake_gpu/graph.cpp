#include "graph.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "generator.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

// A replay that has been launched.
class Replay final : public Operation {
 public:
  Replay(std::shared_ptr<const Graph> graph, const Access& access, Clock before)
      : Operation(access, std::move(before)), graph_(std::move(graph)) {
    for (const Graph::Step& step : graph_->steps_) late_.push_back(step.begin ? step.begin(access) : nullptr);
  }
  bool advance() override {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (; next_ < late_.size(); ++next_) {
      if (!late_[next_]) {
        graph_->steps_[next_].run(access());
      } else if (!late_[next_]->advance()) {
        return false;
      }
    }
    return true;
  }
  void abandon() override {
    for (; next_ < late_.size(); ++next_) {
      if (late_[next_]) late_[next_]->abandon();
    }
  }

 private:
  const std::shared_ptr<const Graph> graph_;
  std::vector<std::unique_ptr<Operation>> late_;  // by step; null: it is done when it runs
  std::size_t next_ = 0;
};

Graph::Graph(int number, Stream& origin, CaptureMode mode) : number_(number), mode_(mode) {
  for (int d = 0; d < machine().devices; ++d)
    generators_.push_back(default_generator(d).unsafeGetGeneratorImpl()->get_state());
  join(origin);
}

void Graph::join(Stream& stream) {
  if (stream.graph == this) return;
  joined_.push_back({&stream, stream.clock, stream.microseconds});
  stream.graph = this;
}

std::vector<Conflict> Graph::touch(Range range, bool writes, const Access& now, const Clock& known) {
  if (range.begin >= range.end) return {};
  const Memory& memory = machine().memory;
  const Block* const block = memory.block_at(range.begin);
  uses_.push_back({range, writes, now.what, block == nullptr ? 0 : block->serial});
  if (writes && block != nullptr && block->graph != number_) {
    const auto* const bytes = static_cast<const std::byte*>(memory.alias(reinterpret_cast<void*>(range.begin)));
    before_.push_back({range.begin, {bytes, bytes + (range.end - range.begin)}});
  }
  return shadow_.touch(range, writes, now, known);
}

void Graph::refuse(int code, const std::string& text) {
  valid_ = false;
  throw_cuda_error(code, text);
}

void Graph::check_valid() const {
  if (!valid_) throw_cuda_error(901, "operation failed due to a previous error during capture");
}

bool Graph::refuses_this_thread() const {
  return mode_ == CaptureMode::kGlobal || (mode_ == CaptureMode::kThreadLocal && thread_ == std::this_thread::get_id());
}

bool Graph::all_joined() const {
  return std::all_of(joined_.begin(), joined_.end(), [&](const Joined& joined) {
    const Stream& stream = *joined.stream;
    const Access last{stream.index, stream.index < stream.clock.size() ? stream.clock[stream.index] : 0, {}};
    return covers(joined.clock, last) || covers(origin().clock, last);
  });
}

void Graph::put_back() {
  for (auto before = before_.rbegin(); before != before_.rend(); ++before) {
    std::memcpy(machine().memory.alias(reinterpret_cast<void*>(before->begin)), before->bytes.data(),
                before->bytes.size());
  }
  before_.clear();
  machine().memory.erase_graph(number_);
  for (const Joined& joined : joined_) {
    joined.stream->clock = joined.clock;
    joined.stream->microseconds = joined.microseconds;
    joined.stream->graph = nullptr;
  }
  for (int d = 0; d < machine().devices; ++d) default_generator(d).unsafeGetGeneratorImpl()->set_state(*generators_[d]);
}

void Graph::end_capture() {
  const bool joined = all_joined();
  for (const Joined& one : joined_) {
    if (one.stream->launching == 0) continue;
    machine().report.add("a capture ends while NCCL still launches operations on " + one.stream->name() +
                         ": ncclCommGetAsyncError says ncclInProgress");
  }
  put_back();
  if (mode_ != CaptureMode::kRelaxed && thread_ != std::this_thread::get_id()) {
    throw_cuda_error(908, "attempt to terminate a thread-local capture sequence from another thread");
  }
  if (!valid_) throw_cuda_error(901, "operation failed due to a previous error during capture");
  if (!joined) throw_cuda_error(904, "capturing stream has unjoined work");
}

void Graph::touch_all(const Access& now, const Clock& known) const {
  for (const Use& use : uses_) {
    const Block* const block = machine().memory.block_at(use.range.begin);
    const bool freed =
        block == nullptr || (block->graph != number_ && (!block->live || block->serial != use.allocation));
    if (freed && machine().memory.is_device(reinterpret_cast<void*>(use.range.begin))) {
      machine().report.add("a graph's " + std::string(use.what) + (use.writes ? " writes" : " reads") +
                           " memory that was freed after the capture");
    }
    const Access access{now.stream, now.number, use.what};
    report_conflicts(use.range, use.writes, access, machine().shadow.touch(use.range, use.writes, access, known));
  }
}

void Graph::replay(const std::shared_ptr<const Graph>& graph, Stream& stream) {
  Clock before = stream.clock;
  const Access now = start_operation(stream, "a graph's replay", &FakeGpuCounts::graph_launches);
  graph->touch_all(now, stream.clock);
  machine().unfinished.add(std::make_unique<Replay>(graph, now, std::move(before)));
}

int Graphs::begin(CaptureMode mode) {
  const std::scoped_lock lock(machine().mutex);
  Stream& stream = machine().streams.current(current_device());
  machine().adversaries.check(current_device());
  TORCH_CHECK(stream.handle.id() != 0, "CUDA graphs must be captured on a non-default stream.");
  if (stream.graph != nullptr) stream.graph->refuse(900, "operation not permitted when stream is capturing");
  const int number = ++captures_;
  capturing_.emplace(number, std::make_unique<Graph>(number, stream, mode));
  return number;
}

int Graphs::end() {
  const std::scoped_lock lock(machine().mutex);
  const Stream& stream = machine().streams.current(current_device());
  if (stream.graph == nullptr || &stream.graph->origin() != &stream) {
    throw_cuda_error(901, "capture was not begun in this stream");
  }
  const int number = stream.graph->number();
  const std::shared_ptr<Graph> graph = std::move(capturing_.extract(number).mapped());
  try {
    graph->end_capture();
  } catch (...) {
    machine().memory.release_graph(number);
    throw;
  }
  done_.emplace(number, graph);
  return number;
}

void Graphs::replay(int number) {
  const std::scoped_lock lock(machine().mutex);
  Stream& stream = machine().streams.current(current_device());
  if (stream.graph != nullptr) stream.graph->refuse(900, "operation not permitted when stream is capturing");
  Graph::replay(done_.at(number), stream);
}

void Graphs::destroy(int number) {
  const std::scoped_lock lock(machine().mutex);
  done_.erase(number);
  machine().memory.release_graph(number);
}

Graph* Graphs::capturing(int number) {
  const auto graph = capturing_.find(number);
  return graph == capturing_.end() ? nullptr : graph->second.get();
}

void Graphs::abandon() {
  for (const auto& [number, graph] : capturing_) {
    graph->put_back();
    machine().memory.release_graph(number);
  }
  capturing_.clear();
}

void Graphs::refuse_host(std::string_view what) {
  bool refused = false;
  for (const auto& [number, graph] : capturing_) {
    if (!graph->refuses_this_thread()) continue;
    graph->invalidate();
    refused = true;
  }
  if (refused) throw_cuda_error(900, "operation not permitted when stream is capturing (" + std::string(what) + ")");
}

}  // namespace dtrain::test::fake_gpu
