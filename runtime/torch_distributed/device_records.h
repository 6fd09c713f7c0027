// When the operations of a device's group began and ended, for an observer. The host never waits for the device: the
// group reports what has ended, on a thread of its own, and how long it took; an event on the issuing stream shows from
// when on it could begin.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dtrain/torch_distributed/observer.h"

namespace dtrain::torch_distributed {

// An operation that has been issued, or is about to be.
struct DeviceRecord {
  EndedOperation facts;
  bool is_sync = false;             // the issuing stream waits for it at once
  std::optional<c10::Event> ready;  // none on the host
};

// Any thread may call it.
class DeviceRecords : public std::enable_shared_from_this<DeviceRecords> {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  using RecordPtr = std::unique_ptr<DeviceRecord>;

  DeviceRecords(c10d::Backend& group, c10::Device device) : group_(group), device_(device) {}

  // Returns null if nobody wants to know, or the stream is being captured.
  RecordPtr begin(const char* name, std::uint64_t sequence, std::int64_t bytes, bool is_sync);
  void issued(RecordPtr record, const c10::intrusive_ptr<c10d::Work>& work);
  // Hands what has ended to the observer.
  void drain();
  // The group has one hook for works that have ended: if the records have it, they call this one, too. Returns false if
  // they have not.
  bool set_hook(Hook hook);

 private:
  // Who reports that an operation has ended.
  enum class Source { kNobody, kHooks, kHook, kFutures };
  struct Report {
    std::uint64_t key = 0;
    std::int64_t duration_ns = 0;  // 0: not known
    std::int64_t at_ns = 0;
    bool is_late = false;  // its operation was not known when it was looked at first
  };

  Source attach();
  std::uint64_t key_of(const c10d::Work& work);
  void report(const Report& report);
  void record_event(DeviceRecord& record, const c10::Stream& stream);
  void set_times(DeviceRecord& record, const Report& report);
  std::int64_t ready_ns(DeviceRecord& record);

  c10d::Backend& group_;
  const c10::Device device_;
  std::once_flag attached_;
  std::atomic<Source> source_{Source::kNobody};

  std::mutex mutex_;  // guards what follows
  Hook hook_;
  std::vector<Report> reports_;
  std::unordered_map<std::uint64_t, RecordPtr> pending_;
  std::deque<std::uint64_t> order_;  // the keys of `pending_`, the oldest first
  std::uint64_t future_key_ = 0;

  std::mutex times_mutex_;  // guards what follows; is locked before mutex_
  std::vector<c10::Event> spare_;
  std::optional<c10::Event> previous_;  // the event at `previous_ns_`
  std::int64_t previous_ns_ = 0, last_end_ns_ = 0;
};

}  // namespace dtrain::torch_distributed
