#include "launch.h"

#include <mutex>

#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

Stream& current_stream(c10::DeviceIndex device) {
  const std::scoped_lock lock(machine().mutex);
  return machine().streams.current(device);
}

}  // namespace

Access start_operation(Stream& stream, std::string_view what, Count count) {
  Machine& all = machine();
  const auto device = stream.handle.device_index();
  all.adversaries.check(device);
  if (device != current_device()) {
    all.report.add("missing device guard: " + std::string(what) + " is launched on " + stream.name() +
                   " while cuda:" + std::to_string(current_device()) + " is the current device");
  }
  if (stream.launching > 0) {
    all.report.add(std::string(what) + " is launched on " + stream.name() +
                   " while NCCL still launches operations there: ncclCommGetAsyncError says ncclInProgress");
  }
  if (stream.graph != nullptr) stream.graph->check_valid();
  if (stream.graph == nullptr) {  // else it is launched at a replay
    all.report.count(count);
    all.adversaries.launched(device);
  }
  merge(stream.clock, all.streams.host());
  if (stream.clock.size() <= stream.index) stream.clock.resize(stream.index + 1);
  stream.microseconds = std::max(stream.microseconds, now_us()) + 1;
  stream.delayed_queries = all.adversaries.delayed_queries;
  return {stream.index, ++stream.clock[stream.index], what};
}

void report_conflicts(Range range, bool writes, const Access& now, const std::vector<Conflict>& conflicts) {
  Machine& all = machine();
  for (const auto& [earlier, wrote] : conflicts) {
    all.report.add("missing wait: " + std::string(now.what) + " on " + all.streams.at(now.stream).name() +
                   (writes ? " writes" : " reads") + " what " + std::string(earlier.what) + " on " +
                   all.streams.at(earlier.stream).name() + (wrote ? " writes" : " reads") + ", in memory " +
                   all.memory.describe(range.begin));
  }
}

Launch::Launch(c10::DeviceIndex device, std::string_view what) : Launch(current_stream(device), what) {}

void Launch::needs_host() {
  const std::scoped_lock lock(machine().mutex);
  refuse_captured(stream_, what_);
  machine().graphs.refuse_host(what_);
}

void Launch::touch(const Use& use) {
  report_conflicts(use.range, use.writes, access_,
                   captured() ? stream_.graph->touch(use.range, use.writes, access_, stream_.clock)
                              : machine().shadow.touch(use.range, use.writes, access_, stream_.clock));
}

void Launch::begin(Count count) {
  const std::scoped_lock lock(machine().mutex);
  machine().unfinished.wait_for_turn(stream_);
  access_ = start_operation(stream_, what_, count);
  touch_all();
}

Clock Launch::begin_later(Count count) {
  const std::scoped_lock lock(machine().mutex);
  Clock before = stream_.clock;
  access_ = start_operation(stream_, what_, count);
  touch_all();
  return before;
}

void Launch::touch_all() {
  for (const Use& use : uses_) {
    if (!use.writes) touch(use);
  }
  for (const Use& use : uses_) {
    if (use.writes) touch(use);
  }
}

void Launch::made(const at::Tensor& tensor) {
  const std::scoped_lock lock(machine().mutex);
  touch({extent_of(tensor), true});
}

void Launch::record(Node node) {
  const std::scoped_lock lock(machine().mutex);
  if (captured()) stream_.graph->add(std::move(node));
}

}  // namespace dtrain::test::fake_gpu
