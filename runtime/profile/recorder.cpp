#include "dtrain/profile/recorder.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/pulse.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/cpu.h"
#include "late_steps.h"
#include "ring.h"
#include "scope_table.h"

namespace dtrain::profile {
namespace {

// The pause between looks of monitor_is_here() after the monitor, each of which takes a system call.
constexpr Nanoseconds kLookPeriod = std::chrono::seconds(1);

// Pauses between attempts to reach a monitor that is away: the first, and the limit of their doubling.
constexpr Nanoseconds kFirstPause = std::chrono::milliseconds(100);
constexpr Nanoseconds kLongestPause = std::chrono::seconds(30);
constexpr Nanoseconds kFlushPatience = std::chrono::seconds(3);  // for an absent monitor to come back

// The period of recording device memory: twice a second, later as often for each doubling of the run's length.
constexpr Nanoseconds kMemoryPeriod = std::chrono::milliseconds(500);
constexpr std::int64_t kMemorySamples = 200;

constexpr std::chrono::milliseconds kConnectPause{5};

constexpr std::int64_t kFreeHeapPeriod = 500'000'000;  // ns

// Returns the bytes of this process's malloc heap that are free between pieces in use; -1: another allocator replaces
// it.
std::int64_t free_heap() {
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.arena > 0 ? static_cast<std::int64_t>(heap.fordblks) : -1;
}

}  // namespace

// State that exists only while records are taken.
struct Recorder::Impl {
  Impl(const Options& options, const Clock& clock_, Nanoseconds process_start);

  std::int64_t now() const { return clock.monotonic().count(); }
  void begin_memory();
  void read_memory(Phase of);
  // Returns the times of the step's phases up to `now_ns`.
  PhaseTimes times_at(std::int64_t now_ns) const {
    PhaseTimes result = times;
    result[static_cast<std::size_t>(phase)] += now_ns - last_change;
    return result;
  }
  void end_memory();

  // Connects and introduces this rank, without waiting. kNobody: nobody listens. kBusy: the queue is full for a moment.
  enum class Connecting { kDone, kNobody, kBusy };
  Connecting connect();
  // Connects if necessary, and waits until the monitor has answered. False: no answer in time, or at once if nobody
  // listens, unless the monitor is `to_come_back`.
  bool reach(Nanoseconds deadline, bool to_come_back);
  void leave();
  // Returns the next message and applies it; empty: none came in time, or the monitor is gone.
  std::optional<Json> receive(std::chrono::milliseconds timeout);

  enum class Monitor { kAway, kAsked, kHere };  // kAsked: connected, it has not answered yet

  const Clock& clock;
  int rank;
  RingWriter ring;
  const std::string monitor_socket;
  Json hello;
  UnixSocket socket;
  Monitor monitor = Monitor::kAway;
  std::optional<std::string> refusal;
  Nanoseconds pause = kFirstPause;
  Nanoseconds next_connect{0};
  Nanoseconds last_look{0};
  std::optional<std::string> write_error;  // the monitor lives, and cannot write
  std::int64_t lost = 0;
  std::int64_t flushes = 0;

  bool paused = false;           // as asked
  bool step_is_recorded = true;  // as of the last begin_step()
  bool in_step = false;
  bool holds_phase = false;
  std::int64_t batch = 0;
  std::int64_t step_start = 0;
  std::int64_t last_change = 0;
  Phase phase = Phase::kOther;
  PhaseTimes times{};
  StepObserver* observer = nullptr;
  Nanoseconds part_start;

  DeviceMemory* memory = nullptr;
  std::int64_t watched_since = 0, next_memory = 0;
  std::int64_t next_free_heap = 0;
  bool in_watched_step = false;
  DeviceMemory::Reading memory_now;
  PhaseTimes memory_peaks{};

  std::optional<LateSteps> late;  // empty: steps are not held
  void write(const Record& from) {
    Record* const record = ring.reserve();
    if (record == nullptr) return;
    *record = from;
    ring.commit();
  }
};

// Memory that was allocated before the step is not a peak of the first phase, but its starting point.
void Recorder::Impl::begin_memory() {
  in_watched_step = memory != nullptr && step_start >= next_memory;
  if (!in_watched_step) return;
  next_memory = step_start + std::max(kMemoryPeriod.count(), (step_start - watched_since) / kMemorySamples);
  memory_peaks.fill(-1);
  memory->take();
}

void Recorder::Impl::read_memory(Phase of) {
  memory_now = memory->take();
  std::int64_t& peak = memory_peaks[static_cast<std::size_t>(of)];
  peak = std::max(peak, memory_now.peak);
}

void Recorder::Impl::end_memory() {
  read_memory(phase);
  in_watched_step = false;
  write({.kind = RecordKind::kDeviceMemory,
         .batch = batch,
         .device_memory = {now(), memory->device(), memory_now.allocated, memory_now.reserved, memory_peaks}});
}

Recorder::Impl::Impl(const Options& options, const Clock& clock_, Nanoseconds process_start)
    : clock(clock_),
      rank(options.rank),
      ring(options.ring_bytes),
      monitor_socket(options.monitor_socket),
      hello{{"type", message_type::kHello},
            {"protocol", kProtocolVersion},
            {"rank", options.rank},
            {"world_size", options.world_size},
            {"pid", ::getpid()},
            {"start_ns", process_start.count()},
            {"cpus", host::allowed_cpus()},
            {"header", options.header.is_object() ? options.header : Json::object()}},
      part_start(process_start) {}

Recorder::Impl::Connecting Recorder::Impl::connect() {
  Connecting result = Connecting::kNobody;
  try {
    socket = UnixSocket::connect(monitor_socket, std::chrono::milliseconds(0));
    const int fd = ring.fd();
    if (socket.send(to_line(hello), {&fd, 1})) {
      monitor = Monitor::kAsked;
      return Connecting::kDone;
    }
  } catch (const SystemError& error) {
    if (error.code() == EAGAIN || error.code() == EINTR) {
      result = Connecting::kBusy;
    } else if (error.code() != ECONNREFUSED) {
      refusal = error.what();
    }
  }
  leave();
  return result;
}

void Recorder::Impl::leave() {
  socket.close();
  monitor = Monitor::kAway;
  next_connect = clock.monotonic() + pause;
  pause = std::min(2 * pause, kLongestPause);
}

bool Recorder::Impl::reach(Nanoseconds deadline, bool to_come_back) {
  while (monitor != Monitor::kHere && !refusal) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.monotonic());
    if (left.count() <= 0) return false;
    if (monitor == Monitor::kAsked) {
      receive(left);
    } else if (const Connecting connecting = connect(); connecting != Connecting::kDone) {
      if (connecting == Connecting::kNobody && !to_come_back) return false;
      std::this_thread::sleep_for(kConnectPause);
    }
  }
  return monitor == Monitor::kHere;
}

std::optional<Json> Recorder::Impl::receive(std::chrono::milliseconds timeout) {
  bool timed_out = false;
  std::optional<UnixMessage> message;
  try {
    message = socket.receive(timeout, &timed_out);
  } catch (const SystemError&) {
    timed_out = false;  // a failed connection has ended
  }
  if (!message) {
    if (!timed_out) leave();
    return std::nullopt;
  }
  const Json value = parse_message(message->data);
  const std::string type = text_at(value, "type");
  if (type == message_type::kError) {
    write_error = value.value("message", std::string("the monitor could not write"));
  } else if (type == message_type::kWelcome) {
    monitor = Monitor::kHere;
    pause = kFirstPause;
  } else if (type == message_type::kRefused) {
    refusal = value.value("reason", std::string("no reason given"));
    leave();
    return std::nullopt;
  }
  return std::make_optional(value);
}

Recorder::Recorder(const Options& options, const Clock& clock, Nanoseconds process_start)
    : scopes_(std::make_unique<ScopeTable>()) {
  if (options.monitor_socket.empty()) return;
  impl_ = std::make_unique<Impl>(options, clock, process_start);
  impl_->reach(clock.monotonic() + options.connect_timeout, false);
  if (const auto& reason = impl_->refusal) {
    throw CommError("the monitor refused rank " + std::to_string(options.rank) + ": " + *reason);
  }
}

Recorder::~Recorder() {
  if (!impl_) return;
  try {
    impl_->socket.send(to_line({{"type", message_type::kFinished}}));
  } catch (const Error&) {
    // The monitor then notes a lost connection. The records are in the ring; nothing more can be done here.
  }
}

bool Recorder::enabled() const {
  return impl_ != nullptr;
}

void Recorder::pause() {
  if (impl_) impl_->paused = true;
}

void Recorder::resume() {
  if (impl_) impl_->paused = false;
}

void Recorder::observe(StepObserver* observer) {
  if (impl_) impl_->observer = observer;
}

void Recorder::begin_step(std::int64_t batch) {
  Pulse::own().begin_batch(batch);
  Pulse::own().enter(static_cast<std::uint32_t>(Phase::kOther));
  scopes_->clear();
  if (!impl_) return;
  Impl& s = *impl_;
  s.in_step = s.step_is_recorded = !s.paused;
  if (!s.in_step) return;
  s.batch = batch;
  if (batch > 0) s.hello.emplace("first_batch", batch);  // the first value stays
  s.phase = Phase::kOther;
  s.times = {};
  s.step_start = s.last_change = s.now();
  if (s.late) s.late->begin_step(batch);
  s.begin_memory();
}

void Recorder::hold_phase(bool hold) {
  if (impl_) impl_->holds_phase = hold;
}

bool Recorder::holds_phase() const {
  return impl_ && impl_->holds_phase;
}

Phase Recorder::switch_to(Phase phase, PhaseOf whose) {
  Pulse::own().enter(static_cast<std::uint32_t>(phase));
  if (!impl_ || !impl_->in_step) return Phase::kOther;
  Impl& s = *impl_;
  const Phase before = s.phase;
  if (phase == before || s.holds_phase) return before;
  const std::int64_t now = s.now();
  s.times[static_cast<std::size_t>(before)] += now - s.last_change;
  if (s.observer) s.observer->on_phase(before, s.last_change, now);
  if (s.late) s.late->change_phase(before, s.last_change, phase, whose, now);
  s.last_change = now;
  s.phase = phase;
  if (s.in_watched_step) s.read_memory(before);
  return before;
}

void Recorder::end_step(const StepInfo& info) {
  Pulse::own().end_batch();
  if (!impl_ || !impl_->in_step) return;
  Impl& s = *impl_;
  const std::int64_t now = s.now();
  s.times[static_cast<std::size_t>(s.phase)] += now - s.last_change;
  s.in_step = false;
  write_scopes(now);
  if (s.observer) {
    s.observer->on_phase(s.phase, s.last_change, now);
    s.observer->on_step(s.batch, s.step_start, now);
  }
  const StepRecord step = {info, s.step_start, now - s.step_start, s.times};
  if (s.late) {
    s.late->end_step(s.phase, s.last_change, now, step);
    hand_on_steps();
  } else {
    s.write({.kind = RecordKind::kStep, .batch = s.batch, .step = step});
  }
  if (s.in_watched_step) s.end_memory();
  if (now >= s.next_free_heap) {
    s.next_free_heap = now + kFreeHeapPeriod;
    s.ring.note_free_heap(free_heap());
  }
}

Scope Recorder::scope(std::string_view name) {
  const std::size_t path = scopes_->find(name);
  if (!impl_ || !impl_->in_step || impl_->holds_phase) return {*this, scopes_->open_untimed(path)};
  const std::int64_t now = impl_->now();
  return {*this, scopes_->open(path, now, impl_->times_at(now))};
}

// Open scopes within the scope end with it.
void Recorder::end_scope(std::uint64_t number) {
  if (!scopes_->is_open(number)) return;  // its step has ended
  std::int64_t now = 0;
  PhaseTimes times{};
  if (impl_ && scopes_->is_timed()) {
    now = impl_->now();
    times = impl_->times_at(now);
  }
  while (scopes_->is_open(number)) end_innermost_scope(now, times);
}

void Recorder::end_innermost_scope(std::int64_t now_ns, const PhaseTimes& times) {
  const auto ended = scopes_->end_innermost(times);
  if (ended.is_timed && impl_->observer) impl_->observer->on_scope(ended.path, ended.start_ns, now_ns);
}

// Writes the scopes of the ending step, whose times are complete.
void Recorder::write_scopes(std::int64_t now_ns) {
  Impl& s = *impl_;
  while (scopes_->any_open()) end_innermost_scope(now_ns, s.times);
  scopes_->each([&](const ScopeRecord& scope) {
    if (s.late) {
      s.late->add_scope(s.batch, scope);
    } else {
      s.write({.kind = RecordKind::kScope, .batch = s.batch, .scope = scope});
    }
  });
  scopes_->clear();
}

Scope::~Scope() {
  recorder_.end_scope(number_);
}

void Recorder::hold_steps(DeviceTimeline* timeline) {
  if (impl_) impl_->late.emplace(timeline);
}

bool Recorder::hand_on_steps() {
  if (!impl_ || !impl_->late) return true;
  Impl& s = *impl_;
  return s.late->hand_on(s.observer, [&](const Record& record) { s.write(record); });
}

void Recorder::release_steps() {
  if (!impl_ || !impl_->late) return;
  Impl& s = *impl_;
  s.late->give_up([&](const Record& record) { s.write(record); });
  s.late.reset();
}

void Recorder::watch(DeviceMemory* memory) {
  if (!impl_) return;
  impl_->memory = memory;
  if (memory == nullptr) impl_->in_watched_step = false;  // an exception may have ended the step
  impl_->watched_since = impl_->next_memory = impl_->now();
}

void Recorder::collective(const CollectiveRecord& collective) {
  if (!impl_ || !impl_->step_is_recorded) return;
  Impl& s = *impl_;
  if (s.late)
    return s.late->add_collective(
        s.batch, [collective] { return collective; }, s.observer);
  if (s.observer) s.observer->on_collective(s.batch, collective);
  s.write({.kind = RecordKind::kCollective, .batch = s.batch, .collective = collective});
}

void Recorder::collective_later(LateCollective collective) {
  if (!impl_ || !impl_->step_is_recorded || !impl_->late) return;
  impl_->late->add_collective(impl_->batch, std::move(collective), impl_->observer);
}

void Recorder::mark(RunMark mark) {
  if (!impl_) return;
  const Nanoseconds start = impl_->part_start;
  impl_->part_start = impl_->clock.monotonic();
  impl_->write(
      {.kind = RecordKind::kMark, .batch = impl_->batch, .mark = {mark, start.count(), impl_->part_start.count()}});
}

void Recorder::clock(const ClockRecord& offset) {
  if (impl_) impl_->write({.kind = RecordKind::kClock, .batch = impl_->batch, .clock = offset});
}

void Recorder::loader(LoaderRecord loader) {
  if (!impl_ || !impl_->step_is_recorded) return;
  Impl& s = *impl_;
  loader.time_ns = s.now();
  if (s.late) return s.late->add_loader(s.batch, loader);
  s.write({.kind = RecordKind::kLoader, .batch = s.batch, .loader = loader});
}

bool Recorder::monitor_is_here() {
  if (!impl_) return true;
  Impl& s = *impl_;
  const Nanoseconds now = s.clock.monotonic();
  const bool reported = s.monitor == Impl::Monitor::kHere && s.ring.monitor_failed() && !s.write_error;
  if (!reported && now - s.last_look < kLookPeriod) return s.monitor == Impl::Monitor::kHere;
  s.last_look = now;
  if (s.monitor == Impl::Monitor::kAway && now >= s.next_connect && !s.refusal) s.connect();
  // The flag is set before its message is sent, so this waits for the message, but never for long.
  while (s.monitor != Impl::Monitor::kAway &&
         s.receive(std::chrono::milliseconds(reported && !s.write_error ? 1000 : 0))) {
  }
  return s.monitor == Impl::Monitor::kHere;
}

void Recorder::flush(std::chrono::milliseconds timeout) {
  if (!impl_) return;
  Impl& s = *impl_;
  const auto deadline = s.clock.monotonic() + timeout;
  while (s.clock.monotonic() < deadline) {
    if (!s.reach(std::min<Nanoseconds>(deadline, s.clock.monotonic() + kFlushPatience), true)) break;
    const std::int64_t id = ++s.flushes;
    if (!s.socket.send(to_line({{"type", message_type::kFlush}, {"id", id}}))) s.leave();
    while (s.monitor == Impl::Monitor::kHere) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - s.clock.monotonic());
      const auto answer = left.count() > 0 ? s.receive(left) : std::nullopt;
      if (!answer && s.monitor == Impl::Monitor::kHere) {
        throw CommError("the monitor did not write the records of rank " + std::to_string(s.rank) + " within " +
                            std::to_string(timeout.count()) + " ms",
                        "is the file system of the run's folder slow or hanging? Otherwise see logs/agent-*.log in the "
                        "run's folder");
      }
      if (!answer || text_at(*answer, "type") != message_type::kFlushed || answer->value("id", std::int64_t{0}) != id)
        continue;
      s.lost = answer->value("lost", std::int64_t{0});
      return;
    }
  }
  throw CommError("the monitor of this host has ended: the last records of rank " + std::to_string(s.rank) +
                      " are not in the profile",
                  "see logs/agent-*.log in the run's folder");
}

std::int64_t Recorder::lost() const {
  return impl_ ? impl_->lost : 0;
}

const std::optional<std::string>& Recorder::write_error() const {
  static const std::optional<std::string> kNone;
  return impl_ ? impl_->write_error : kNone;
}

}  // namespace dtrain::profile
