#include "dtrain/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "batch_pool.h"
#include "dtrain/base/blocked_signals.h"
#include "dtrain/base/error.h"
#include "dtrain/data/sampler.h"

namespace dtrain::data {

namespace {

// Beside those ready: one being read, one in use, one or two still referenced by the step before.
constexpr int kSpareBuffers = 4;

// Of a whole batch, for each field.
std::vector<std::size_t> buffer_sizes(const Dataset& dataset, const LoaderOptions& options) {
  std::vector<std::size_t> sizes;
  for (const auto& field : dataset.fields()) {
    sizes.push_back(field.bytes() * static_cast<std::size_t>(options.batch_size));
  }
  return sizes;
}

}  // namespace

struct SampleLoader::Impl {
  struct Item {
    HostBatch batch;
    std::exception_ptr error;
  };

  Impl(std::shared_ptr<const Dataset> source, const LoaderOptions& loader_options)
      : dataset(std::move(source)),
        options(loader_options),
        sampler(dataset->size(), {options.batch_size, options.rank, options.world_size, options.shuffle,
                                  options.drop_last, options.seed}),
        sizes(buffer_sizes(*dataset, options)),
        pool(BatchPool::create(sizes, static_cast<std::size_t>(options.prefetch) + kSpareBuffers)),
        left(0) {
    if (options.prefetch == 0) return;
    const BlockedSignals blocked;  // signals are for the program's own threads
    thread = std::thread([this] { work(); });
    pthread_setname_np(thread.native_handle(), "dtrain-loader");
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake_worker.notify_all();
    if (thread.joinable()) thread.join();
  }

  std::shared_ptr<std::byte> take_buffer(std::size_t field) {
    return options.allocate ? options.allocate(sizes[field]) : pool->take(field);
  }

  // Called on one thread at a time: the worker, or next()'s when there is none.
  Item read(std::int64_t of_epoch, std::int64_t index) {
    Item item;
    const auto start = std::chrono::steady_clock::now();
    try {
      if (!order || order_epoch != of_epoch) {
        order.emplace(sampler.order(of_epoch));
        order_epoch = of_epoch;
      }
      const auto samples = sampler.batch(*order, index);
      std::vector<std::byte*> outputs;
      for (std::size_t f = 0; f < dataset->fields().size(); ++f) {
        item.batch.fields.push_back(take_buffer(f));
        outputs.push_back(item.batch.fields.back().get());
      }
      dataset->read(samples, outputs);
      item.batch.samples = static_cast<std::int64_t>(samples.size());
      item.batch.fetch_time = std::chrono::steady_clock::now() - start;
    } catch (...) {
      item = {{}, std::current_exception()};
    }
    return item;
  }

  void work() {
    std::uint64_t seen = 0;  // the generation this thread works for, or has finished
    std::int64_t of_epoch = 0, index = 0;
    const auto batches = sampler.batches_per_epoch();
    std::unique_lock lock(mutex);
    for (;;) {
      wake_worker.wait(lock, [&] {
        const bool room = ready.size() < static_cast<std::size_t>(options.prefetch);
        return stop || generation != seen || (seen != 0 && index < batches && room);
      });
      if (stop) return;
      if (generation != seen) {
        seen = generation;
        of_epoch = epoch;
        index = first_batch;
        continue;
      }
      lock.unlock();
      auto item = read(of_epoch, index++);
      lock.lock();
      if (generation != seen) continue;  // a new epoch was started meanwhile: this batch is dropped
      ready.push_back(std::move(item));
      wake_consumer.notify_one();
    }
  }

  Item take_ready() {
    std::unique_lock lock(mutex);
    wake_consumer.wait(lock, [&] { return !ready.empty(); });
    auto item = std::move(ready.front());
    ready.pop_front();
    lock.unlock();
    wake_worker.notify_one();
    return item;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const Sampler sampler;
  const std::vector<std::size_t> sizes;
  const std::shared_ptr<BatchPool> pool;  // where options.allocate is empty

  std::int64_t left;                // batches that next() has still to give; the caller's thread alone
  std::optional<EpochOrder> order;  // of order_epoch; the reading thread alone
  std::int64_t order_epoch = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable wake_worker, wake_consumer;
  std::deque<Item> ready;
  std::uint64_t generation = 0;  // counts start_epoch(): marks batches of an abandoned epoch
  std::int64_t epoch = 0;
  std::int64_t first_batch = 0;  // of the epoch
  bool stop = false;
  std::thread thread;
};

SampleLoader::SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  if (options.prefetch < 0)
    throw DataError("prefetch is " + std::to_string(options.prefetch) + ", but must be at least 0");
  impl_ = std::make_unique<Impl>(std::move(dataset), options);
}

SampleLoader::~SampleLoader() = default;

void SampleLoader::start_epoch(std::int64_t epoch, std::int64_t first_batch) {
  first_batch = std::clamp<std::int64_t>(first_batch, 0, batches_per_epoch());
  std::deque<Impl::Item> dropped;  // freed after the lock
  {
    const std::lock_guard lock(impl_->mutex);
    dropped.swap(impl_->ready);
    impl_->epoch = epoch;
    impl_->first_batch = first_batch;
    ++impl_->generation;
  }
  impl_->left = batches_per_epoch() - first_batch;
  impl_->wake_worker.notify_one();
}

std::optional<HostBatch> SampleLoader::next() {
  if (impl_->left == 0) return std::nullopt;
  const auto index = batches_per_epoch() - impl_->left--;
  auto item = impl_->options.prefetch > 0 ? impl_->take_ready() : impl_->read(impl_->epoch, index);
  if (item.error) std::rethrow_exception(item.error);
  return std::move(item.batch);
}

std::int64_t SampleLoader::batches_per_epoch() const {
  return impl_->sampler.batches_per_epoch();
}
std::int64_t SampleLoader::samples_per_epoch() const {
  return impl_->sampler.samples_per_epoch();
}

std::int32_t SampleLoader::queue_depth() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<std::int32_t>(impl_->ready.size());
}

std::int32_t SampleLoader::workers() const {
  return impl_->options.prefetch > 0 ? 1 : 0;
}
const Dataset& SampleLoader::dataset() const {
  return *impl_->dataset;
}

}  // namespace dtrain::data
