#include "device_records.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace dtrain::torch_distributed {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMostRecords = 4'096;  // what never ends, in a captured graph say, must not pile up

std::int64_t host_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What later minor versions of PyTorch have.
template <class Stream>
bool is_captured(const Stream& stream) {
  if constexpr (requires { stream.is_capturing(); }) return stream.is_capturing();
  return false;
}

template <class Backend, class Report>
bool reports_completions(Backend& part, const Report& report) {
  if constexpr (requires { part.supportsCompletionHooks(); }) {
    if (!part.supportsCompletionHooks()) return false;
    part.registerCompletionHook(reinterpret_cast<std::intptr_t>(&part), [report](const auto& completion) {
      report(completion.completionKey, completion.duration_ms.value_or(0));
    });
    return true;
  }
  return false;
}

template <class Work>
std::uint64_t completion_key(const Work& work) {
  if constexpr (requires { work.getCompletionKey(); }) return work.getCompletionKey();
  return 0;
}

// Messages are counted by themselves.
std::uint64_t sequence_key(c10d::OpType type, std::uint64_t sequence) {
  return 2 * sequence + (c10d::isP2POp(type) ? 1 : 0);
}

std::int64_t to_ns(double milliseconds) {
  return static_cast<std::int64_t>(milliseconds * 1e6);
}

}  // namespace

DeviceRecords::Source DeviceRecords::attach() {
  if (device_.is_cpu()) return Source::kFutures;
  try {
    group_.enableCollectivesTiming();
    const std::weak_ptr<DeviceRecords> weak = weak_from_this();
    const bool has_hooks = reports_completions(group_, [weak](std::uint64_t key, double milliseconds) {
      if (const auto self = weak.lock()) self->report({key, to_ns(milliseconds), host_ns()});
    });
    if (has_hooks) return Source::kHooks;
    group_.registerOnCompletionHook([weak](std::shared_ptr<c10d::WorkInfo> work) {
      const auto self = weak.lock();
      if (!self) return;
      self->report({sequence_key(work->opType, work->seq), to_ns(1e3 * work->activeDuration.count()), host_ns()});
      Hook hook;
      {
        const std::scoped_lock lock(self->mutex_);
        hook = self->hook_;
      }
      if (hook) hook(std::move(work));
    });
    return Source::kHook;
  } catch (const c10::Error& error) {
    TORCH_WARN("dtrain: the times of operations on ", device_, " are not recorded: ", error.what_without_backtrace());
    return Source::kNobody;
  }
}

bool DeviceRecords::set_hook(Hook hook) {
  const std::scoped_lock lock(mutex_);
  hook_ = std::move(hook);
  return source_ == Source::kHook;
}

DeviceRecords::RecordPtr DeviceRecords::begin(const char* name, std::uint64_t sequence, std::int64_t bytes,
                                              bool is_sync) {
  Observer* const observer = current_observer();
  if (observer == nullptr) return nullptr;
  std::call_once(attached_, [&] { source_ = attach(); });
  if (source_ == Source::kNobody) return nullptr;
  drain();
  auto record = std::make_unique<DeviceRecord>();
  record->facts = {.name = name,
                   .sequence = sequence,
                   .bytes = bytes,
                   .group_size = group_.getSize(),
                   .bucket = observer->bucket(),
                   .enqueued_ns = host_ns()};
  record->is_sync = is_sync;
  if (device_.is_cpu()) return record;
  const c10::Stream stream = current_stream(device_);
  if (is_captured(stream)) return nullptr;
  record_event(*record, stream);
  return record;
}

void DeviceRecords::record_event(DeviceRecord& record, const c10::Stream& stream) {
  constexpr auto kWithTimes = c10::EventFlag::BACKEND_DEFAULT;
  const std::scoped_lock lock(times_mutex_);
  if (!previous_) {  // the only wait: the clock of the host is set beside that of the device
    previous_.emplace(device_.type(), kWithTimes);
    previous_->record(stream);
    previous_->synchronize();
    previous_ns_ = host_ns();
  }
  if (spare_.empty()) {
    record.ready.emplace(device_.type(), kWithTimes);
  } else {
    record.ready.emplace(std::move(spare_.back()));
    spare_.pop_back();
  }
  record.ready->record(stream);
}

std::uint64_t DeviceRecords::key_of(const c10d::Work& work) {
  switch (source_) {
    case Source::kHooks:
      return completion_key(work);
    case Source::kHook:
      return sequence_key(work.retrieveOpType(), work.getSequencenumber());
    default:
      return ++future_key_;
  }
}

void DeviceRecords::issued(RecordPtr record, const c10::intrusive_ptr<c10d::Work>& work) {
  if (!work) return;
  std::uint64_t key = 0;
  {
    const std::scoped_lock lock(mutex_);
    key = key_of(*work);
    pending_.insert_or_assign(key, std::move(record));
    order_.push_back(key);
    while (pending_.size() > kMostRecords || !pending_.contains(order_.front())) {
      pending_.erase(order_.front());
      order_.pop_front();
    }
  }
  if (source_ != Source::kFutures) return;
  work->getFuture()->addCallback(
      [weak = weak_from_this(), key](c10::ivalue::Future& future) {
        const auto self = weak.lock();
        if (self && !future.hasError()) self->report({key, 0, host_ns()});
      },
      /*uses_future=*/false);
}

void DeviceRecords::report(const Report& report) {
  const std::scoped_lock lock(mutex_);
  reports_.push_back(report);
}

// Each event is compared with the one before it, because times between events are of float32.
std::int64_t DeviceRecords::ready_ns(DeviceRecord& record) {
  if (!record.ready) return record.facts.enqueued_ns;
  previous_ns_ += to_ns(previous_->elapsedTime(*record.ready));
  std::swap(*previous_, *record.ready);
  spare_.push_back(std::move(*record.ready));
  return std::max(previous_ns_, record.facts.enqueued_ns);
}

void DeviceRecords::set_times(DeviceRecord& record, const Report& report) {
  EndedOperation& facts = record.facts;
  const bool is_collective = facts.sequence != 0;
  facts.started_ns = ready_ns(record);
  if (report.duration_ns > 0) {  // collectives of a group follow each other on its stream
    if (is_collective) facts.started_ns = std::max(facts.started_ns, last_end_ns_);
    facts.ended_ns = facts.started_ns + report.duration_ns;
  } else {
    facts.ended_ns = std::max(facts.started_ns, report.at_ns);
  }
  if (is_collective) last_end_ns_ = std::max(last_end_ns_, facts.ended_ns);
  if (record.is_sync) facts.exposed_ns = facts.ended_ns - facts.started_ns;
}

void DeviceRecords::drain() {
  Observer* const observer = current_observer();
  if (observer == nullptr) return;
  const std::scoped_lock times_lock(times_mutex_);
  std::vector<std::pair<Report, RecordPtr>> ended;
  {
    const std::scoped_lock lock(mutex_);
    std::vector<Report> late;
    for (Report& report : reports_) {
      if (const auto found = pending_.find(report.key); found != pending_.end()) {
        ended.emplace_back(report, std::move(found->second));
        pending_.erase(found);
      } else if (!std::exchange(report.is_late, true)) {  // its thread has not come to issued() yet
        late.push_back(report);
      }
    }
    reports_ = std::move(late);
  }
  for (auto& [report, record] : ended) {
    set_times(*record, report);
    observer->ended(record->facts);
  }
}

}  // namespace dtrain::torch_distributed
