#include "batch_job.h"

#include <algorithm>
#include <new>

#include "dtrain/base/error.h"
#include "worker_count.h"

namespace dtrain::data {
namespace {

// Number of following samples that are tried in place of a damaged one. If all are damaged, too, the file is gone.
constexpr std::int64_t kNeighbours = 16;

std::string text_of(std::exception_ptr error, std::string* remedy = nullptr) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const Error& known) {
    if (remedy) *remedy = known.remedy();
    return describe(known);
  } catch (const std::exception& other) {
    return describe(other);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

bool is_damage(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const DataError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// False for lack of memory or of other system resources, which says nothing about a sample.
bool is_of_sample(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const SystemError&) {
    return false;
  } catch (...) {
    return true;
  }
}

// Returns "sample 17 (train-0003.tar, offset 51200): what", without parts that `what` has already.
std::string named(const Dataset& dataset, std::int64_t sample, const std::string& what) {
  const std::string name = "sample " + std::to_string(sample);
  const std::string where = dataset.where(sample);
  const std::string file = where.substr(0, where.find(", offset "));
  const bool says_where = where.empty() || what.find(file) != std::string::npos;
  if (what.starts_with(name + ":") || what.starts_with(name + " ")) {
    return says_where ? what : what + " (" + where + ")";
  }
  return name + (says_where ? "" : " (" + where + ")") + ": " + what;
}

std::byte* allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{BatchPool::kAlignment}));
}

void deallocate(std::byte* memory) {
  ::operator delete (memory, std::align_val_t{BatchPool::kAlignment});
}

}  // namespace

BatchJob::BatchJob(const Dataset& dataset, const BatchPlace& place, std::vector<std::int64_t> samples,
                   const BatchAllocator& allocate, bool skip)
    : dataset_(dataset), skip_(skip), samples_(std::move(samples)) {
  try {
    builder_ = dataset.begin(place, static_cast<std::int64_t>(samples_.size()), allocate);
  } catch (...) {
    keep_error(0, std::current_exception());
  }
}

template <typename Work>
void BatchJob::measured(ThreadUsage& usage, const Work& work) {
  usage.begin();
  work();
  const ReadUsage used = usage.end();
  const std::lock_guard lock(mutex_);
  batch_.usage += used;
}

bool BatchJob::is_pointless(std::size_t place) {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr && error_place_ <= place;
}

void BatchJob::read(std::size_t first, std::size_t count, ThreadUsage& usage) {
  if (is_pointless(first)) return;
  {
    const std::lock_guard lock(mutex_);
    reading_.emplace(first, count);
  }
  measured(usage, [&] {
    try {
      builder_->read(static_cast<std::int64_t>(first), std::span(samples_).subspan(first, count));
    } catch (...) {
      read_one_by_one(first, count, std::current_exception());
    }
  });
  const std::lock_guard lock(mutex_);
  reading_.erase({first, count});
}

std::string BatchJob::in_reading() {
  const std::lock_guard lock(mutex_);
  if (reading_.empty()) return "the batch is being completed";
  const auto [first, count] = *reading_.begin();
  const std::string where = dataset_.where_unread(samples_[first]);
  const std::string sample = "sample " + std::to_string(samples_[first]) + (where.empty() ? "" : " (" + where + ")");
  return count == 1 ? sample + " is being read"
                    : "of " + std::to_string(count) + " samples one is being read; the first is " + sample;
}

void BatchJob::read_one_by_one(std::size_t first, std::size_t count, const std::exception_ptr& error) {
  if (!is_of_sample(error)) return keep_error(first, error);
  bool found = false;
  for (std::size_t place = first; place < first + count; ++place) {
    try {
      read_place(place);
    } catch (...) {
      const std::exception_ptr own = std::current_exception();
      std::string remedy;
      const std::string damage = named(dataset_, samples_[place], text_of(own, &remedy));
      if (!skip_ || !is_damage(own)) return keep_error(place, std::make_exception_ptr(DataError(damage, remedy)));
      found = true;
      try {
        replace(place, damage);
      } catch (...) {
        return keep_error(place, std::current_exception());
      }
    }
  }
  if (found || skip_) return;
  // The error did not repeat. A file that can be read only sometimes must not be trained with.
  std::string remedy;
  const std::string what = text_of(error, &remedy);
  const std::string which = count == 1 ? "sample " + std::to_string(samples_[first])
                                       : "one of " + std::to_string(count) + " samples, the first of which is " +
                                             std::to_string(samples_[first]);
  keep_error(first, std::make_exception_ptr(
                        DataError(which + ", which could be read when tried again: " + what,
                                  remedy.empty() ? "look at the disk, or the network, that has it" : remedy)));
}

void BatchJob::read_place(std::size_t place) {
  builder_->read(static_cast<std::int64_t>(place), std::span(samples_).subspan(place, 1));
}

void BatchJob::replace(std::size_t place, const std::string& damage) {
  const std::int64_t damaged = samples_[place];
  const std::int64_t most = std::min(kNeighbours, dataset_.size() - 1);
  for (std::int64_t step = 1; step <= most; ++step) {
    samples_[place] = (damaged + step) % dataset_.size();
    try {
      read_place(place);
      const std::lock_guard lock(mutex_);
      batch_.skipped.push_back({static_cast<std::int64_t>(place), damaged, damage});
      return;
    } catch (...) {
      if (!is_damage(std::current_exception())) throw;
    }
  }
  throw DataError(damage + "; and so are the " + std::to_string(most) + " samples after it",
                  "on_error: skip leaves out single samples; is the file still there, and whole?");
}

void BatchJob::keep_error(std::size_t place, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr && error_place_ <= place) return;
  error_ = std::move(error);
  error_place_ = place;
}

void BatchJob::finish(ThreadUsage& usage) {
  if (error_ != nullptr) return;
  measured(usage, [&] {
    try {
      static_cast<HostBatch&>(batch_) = builder_->finish();
      std::sort(batch_.skipped.begin(), batch_.skipped.end(),
                [](const SkippedSample& a, const SkippedSample& b) { return a.place < b.place; });
    } catch (...) {
      error_ = std::current_exception();
    }
  });
  builder_.reset();
}

LoadedBatch BatchJob::take() {
  if (error_ != nullptr) std::rethrow_exception(error_);
  return std::move(batch_);
}

std::shared_ptr<BatchPool> BatchPool::create(std::size_t keep) {
  return std::shared_ptr<BatchPool>(new BatchPool(keep));
}

BatchPool::BatchPool(std::size_t keep) : keep_(keep) {
  idle_.reserve(keep_);  // so that give_back() never allocates
}

BatchPool::~BatchPool() {
  for (const Buffer& buffer : idle_) deallocate(buffer.memory);
}

std::shared_ptr<std::byte> BatchPool::take(std::size_t bytes) {
  Buffer buffer{nullptr, bytes};
  {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto idle = idle_.begin(); idle != idle_.end(); ++idle) {
      const bool fits = idle->bytes >= bytes && idle->bytes / 2 <= bytes;
      if (fits && (best == idle_.end() || idle->bytes <= best->bytes)) best = idle;
    }
    if (best != idle_.end()) {
      buffer = *best;
      idle_.erase(best);
    }
  }
  if (buffer.memory == nullptr) buffer.memory = allocate(bytes);
  return {buffer.memory, [pool = shared_from_this(), size = buffer.bytes](std::byte* memory) {
            pool->give_back({memory, size});
          }};
}

void BatchPool::give_back(Buffer buffer) noexcept {
  if (keep_ == 0) return deallocate(buffer.memory);
  Buffer dropped{};
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() == keep_) {  // sizes have changed: the buffer that was idle for longest is freed
      dropped = idle_.front();
      idle_.erase(idle_.begin());
    }
    idle_.push_back(buffer);
  }
  if (dropped.memory != nullptr) deallocate(dropped.memory);
}

}  // namespace dtrain::data
