#include "dtrain/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "batch_job.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/data/epoch_order.h"
#include "worker_count.h"

namespace dtrain::data {

// Announces the next blocks to the data set, so that the kernel reads them in large pieces during training. Thread
// safe.
class ReadAhead {
 public:
  // Reads ahead in an epoch from `position` on.
  ReadAhead(std::shared_ptr<const EpochOrder> order, std::int64_t position)
      : order_(std::move(order)), start_(position), next_block_(order_->window_block(position)) {}

  // Called before a batch that begins at `position` is read. Starts with no lead over training and gains one block for
  // each block that is used, until the lead is one window.
  void reach(const Dataset& dataset, std::int64_t position) {
    const std::int64_t done = std::max<std::int64_t>(0, position - start_);
    const std::int64_t end = position + std::min(done, order_->window_size(std::min(position, order_->size() - 1)));
    const std::lock_guard lock(mutex_);
    for (; next_block_ < order_->blocks() && order_->begin(next_block_) < end; ++next_block_) {
      const EpochOrder::Run block = order_->block(next_block_);
      dataset.will_read(block.first, block.samples);
    }
  }

 private:
  const std::shared_ptr<const EpochOrder> order_;
  const std::int64_t start_;  // position at which reading began
  std::mutex mutex_;          // guards next_block_
  std::int64_t next_block_;   // index in the epoch's order of blocks
};

namespace {

// Buffers besides the ready ones: one being read, one in use, and up to two that the last step still references.
constexpr int kSpareBuffers = 4;
// Time in nanoseconds from which a piece of a batch is worth another thread.
constexpr std::int64_t kShortestPiece = 50'000;

}  // namespace

struct SampleLoader::Impl {
  // A batch from its begin until next() takes it. Guarded by the mutex, except for state that the job guards.
  struct InWork {
    std::unique_ptr<BatchJob> job;  // empty: a worker is making it
    std::size_t next_place = 0;     // first place that no worker has taken
    std::size_t piece = 0;          // number of places that a worker takes at once
    std::size_t places_left = 0;    // number of places that have not been read
    bool is_complete = false;
  };

  Impl(std::shared_ptr<const Dataset> source, const LoaderOptions& loader_options)
      : dataset(std::move(source)),
        options(loader_options),
        sampler(std::make_shared<const BlockTable>(dataset->size(), dataset->blocks(), options.shuffle_window),
                {options.batch_size, options.rank, options.world_size, options.shuffle, options.drop_last, options.seed,
                 options.whole_batches}),
        pool(BatchPool::create(dataset->fields().size() * static_cast<std::size_t>(options.prefetch + kSpareBuffers))),
        allocate(options.allocate ? options.allocate
                                  : BatchAllocator([this](std::size_t bytes) { return pool->take(bytes); })),
        count(options.free_cores, LoaderOptions::kMostAuto),
        active(options.workers == LoaderOptions::kAuto ? 1 : options.workers) {
    if (options.workers == 0) own_usage.emplace(/*is_of_reading=*/false);
  }

  // Makes threads up to `active`, which only the caller of next() changes.
  static void start_threads(const std::shared_ptr<Impl>& impl) {
    const BlockedSignals blocked;  // signals go to the program's own threads
    while (impl->threads.size() < static_cast<std::size_t>(impl->active)) {
      const auto number = static_cast<int>(impl->threads.size());
      impl->threads.push_back(start_thread("the loader", [impl, number] { impl->work(number); }));
      pthread_setname_np(impl->threads.back().native_handle(), ("dtrain-load-" + std::to_string(number)).c_str());
    }
  }

  std::unique_ptr<BatchJob> make_job(const std::shared_ptr<const EpochOrder>& of_epoch, std::int64_t epoch_number,
                                     std::int64_t from) const {
    const Sampler::Part part = sampler.part(from);
    return std::make_unique<BatchJob>(*dataset, BatchPlace{{options.seed, epoch_number}, part.first},
                                      of_epoch->take(part.first, part.count), allocate, options.skip_damaged);
  }

  // Returns the number of batches that may be begun, besides those that next() has taken.
  std::size_t room() const {
    return std::max(static_cast<std::size_t>(options.prefetch), std::size_t{is_asked ? 1u : 0u});
  }

  // Returns a batch with places for a worker to read; empty: none.
  std::shared_ptr<InWork> next_piece() const {
    for (const auto& batch : begun) {
      if (batch->job && batch->next_place < batch->job->places()) return batch;
    }
    return nullptr;
  }
  bool can_begin() const { return to_begin > 0 && begun.size() < room(); }

  std::size_t piece_of(std::size_t places) const {
    const auto by_time = static_cast<std::size_t>(std::max<std::int64_t>(1, last_read_ns / kShortestPiece));
    const std::size_t pieces = active == 1 ? 1 : std::min(by_time, 2 * static_cast<std::size_t>(active));
    return std::max<std::size_t>(1, (places + pieces - 1) / pieces);
  }

  void work(int number) {
    ThreadUsage usage(/*is_of_reading=*/true);
    std::unique_lock lock(mutex);
    for (;;) {
      wake_workers.wait(lock, [&] { return stop || (number < active && (next_piece() || can_begin())); });
      if (stop) return;
      if (const auto batch = next_piece()) {
        read_piece(lock, batch, usage);
      } else {
        begin_batch(lock);
      }
    }
  }

  void begin_batch(std::unique_lock<std::mutex>& lock) {
    const auto batch = std::make_shared<InWork>();
    begun.push_back(batch);
    const auto of_epoch = order;
    const auto ahead_of_epoch = ahead;
    const std::int64_t epoch_number = epoch, from = begin_at, of_generation = generation;
    begin_at += sampler.global_batch();
    --to_begin;
    lock.unlock();
    std::unique_ptr<BatchJob> job;
    try {
      if (ahead_of_epoch) ahead_of_epoch->reach(*dataset, from);
      job = make_job(of_epoch, epoch_number, from);
    } catch (...) {
      job = std::make_unique<BatchJob>(*dataset, std::current_exception());
    }
    lock.lock();
    if (of_generation != generation) return;  // a new epoch has started meanwhile
    if (job->places() == 0) {
      batch->is_complete = true;
      wake_consumer.notify_one();
    }
    batch->places_left = job->places();
    batch->piece = piece_of(job->places());
    batch->job = std::move(job);
    wake_workers.notify_all();  // all, because this worker may no longer be active and leaves the batch to others
  }

  void read_piece(std::unique_lock<std::mutex>& lock, const std::shared_ptr<InWork>& batch, ThreadUsage& usage) {
    const std::size_t first = batch->next_place;
    const std::size_t places = std::min(batch->piece, batch->job->places() - first);
    batch->next_place += places;
    lock.unlock();
    batch->job->read(first, places, usage);
    lock.lock();
    batch->places_left -= places;
    if (batch->places_left > 0) return;
    lock.unlock();
    batch->job->finish(usage);
    lock.lock();
    batch->is_complete = true;
    wake_consumer.notify_one();
  }

  LoadedBatch take_complete() {
    std::shared_ptr<InWork> batch;
    {
      std::unique_lock lock(mutex);
      is_asked = true;
      if (begun.empty()) wake_workers.notify_all();
      const auto is_there = [&] { return !begun.empty() && begun.front()->is_complete; };
      if (options.timeout.count() == 0) {
        wake_consumer.wait(lock, is_there);
      } else if (!wake_consumer.wait_for(lock, options.timeout, is_there)) {
        give_up(lock);
      }
      is_asked = false;
      batch = std::move(begun.front());
      begun.pop_front();
    }
    wake_workers.notify_all();
    return batch->job->take();
  }

  [[noreturn]] void give_up(std::unique_lock<std::mutex>& lock) {
    has_timed_out = true;
    const auto batch = begun.empty() ? nullptr : begun.front();
    BatchJob* const job = batch ? batch->job.get() : nullptr;  // a job stays once it is set
    lock.unlock();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
    throw DataError("no batch came for " + std::to_string(seconds) +
                        " s: " + (job != nullptr ? job->in_reading() : "a batch is being begun"),
                    "does the disk or the network that has the data answer? communication.timeout is how long a rank "
                    "waits");
  }

  LoadedBatch read_here(std::int64_t from) {
    if (ahead) ahead->reach(*dataset, from);
    const auto job = make_job(order, epoch, from);
    job->read(0, job->places(), *own_usage);
    job->finish(*own_usage);
    return job->take();
  }

  // Counts in the order of the batches, so that always the same batch exceeds the limit.
  void count_skipped(const LoadedBatch& batch) {
    skipped += static_cast<std::int64_t>(batch.skipped.size());
    if (skipped <= options.max_skipped) return;
    throw DataError(std::to_string(skipped) + " damaged samples were left out in epoch " + std::to_string(epoch) +
                        " by rank " + std::to_string(options.rank) + ", more than " +
                        std::to_string(options.max_skipped) + "; the last one: " + batch.skipped.back().damage,
                    "repair the data, or raise max_skipped");
  }

  void follow_rate(std::int64_t used_ns, const ReadUsage& usage) {
    const int wanted = count.after_batch(used_ns, usage);
    const std::lock_guard lock(mutex);
    last_read_ns = usage.time_ns;
    active = options.workers == LoaderOptions::kAuto ? wanted : active;
  }

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const Sampler sampler;
  const std::shared_ptr<BatchPool> pool;  // used if options.allocate is empty
  const BatchAllocator allocate;

  // The members below are used by the caller's thread alone.
  WorkerCount count;
  std::optional<ThreadUsage> own_usage;  // set if there are no workers
  std::int64_t left = 0;                 // number of batches that next() has not returned
  std::int64_t position = 0;             // position of the next batch
  std::int64_t skipped = 0;              // damaged samples in this epoch
  std::chrono::steady_clock::time_point given_at;
  bool has_given = false;

  mutable std::mutex mutex;  // guards the members below
  std::condition_variable wake_workers, wake_consumer;
  std::deque<std::shared_ptr<InWork>> begun;
  std::shared_ptr<const EpochOrder> order;
  std::shared_ptr<ReadAhead> ahead;  // empty: nothing is read ahead
  std::int64_t epoch = 0;
  std::int64_t begin_at = 0, to_begin = 0;  // position of the next batch to begin, and how many are left
  std::int64_t generation = 0;              // counts start_epoch(): marks batches of an abandoned epoch
  std::int64_t last_read_ns = 0;
  bool is_asked = false;  // true while next() waits
  bool stop = false;
  bool has_timed_out = false;
  int active;
  std::vector<std::thread> threads;  // used by the caller's thread alone
};

std::string LoaderState::text() const {
  return to_line({{"epoch", epoch}, {"position", position}, {"skipped", skipped}, {"seed", seed}, {"order", order}});
}

LoaderState LoaderState::parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) {
    const auto found = value_at<std::int64_t>(json, name);
    if (!found) {
      throw DataError("the state of a loader has no number '" + std::string(name) + "': " + text.substr(0, 100));
    }
    return *found;
  };
  LoaderState state;
  state.epoch = number("epoch");
  state.position = number("position");
  state.skipped = number("skipped");
  number("seed");
  state.seed = json["seed"].get<std::uint64_t>();
  if (!json.contains("order") || !json["order"].is_string()) throw DataError("the state of a loader names no order");
  state.order = json["order"].get<std::string>();
  return state;
}

SampleLoader::SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  const auto require = [](bool good, const char* name, std::int64_t value, const std::string& bounds) {
    if (!good) throw DataError(std::string(name) + " is " + std::to_string(value) + ", but must be " + bounds);
  };
  require(options.prefetch >= 0, "prefetch", options.prefetch, "at least 0");
  require(options.workers == LoaderOptions::kAuto ||
              (options.workers >= 0 && options.workers <= LoaderOptions::kMostWorkers),
          "workers", options.workers, "auto or from 0 to " + std::to_string(LoaderOptions::kMostWorkers));
  require(options.max_skipped >= 0, "max_skipped", options.max_skipped, "at least 0");
  require(options.shuffle_window > 0, "shuffle_window", options.shuffle_window, "greater than 0");
  impl_ = std::make_shared<Impl>(std::move(dataset), options);
  Impl::start_threads(impl_);
}

SampleLoader::~SampleLoader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake_workers.notify_all();
  for (std::thread& thread : impl_->threads) impl_->has_timed_out ? thread.detach() : thread.join();
}

void SampleLoader::start_epoch(std::int64_t epoch, std::int64_t position) {
  Impl& impl = *impl_;
  position = std::clamp<std::int64_t>(position, 0, impl.sampler.size());
  std::shared_ptr<const EpochOrder> order(new EpochOrder(impl.sampler.order(epoch)));
  const bool reads_ahead =
      impl.sampler.blocks().has_blocks() && 2 * impl.options.ranks_of_host >= impl.options.world_size;
  auto ahead = reads_ahead ? std::make_shared<ReadAhead>(order, position) : nullptr;
  std::deque<std::shared_ptr<Impl::InWork>> dropped;  // freed after the lock
  {
    const std::lock_guard lock(impl.mutex);
    dropped.swap(impl.begun);
    impl.ahead = std::move(ahead);
    impl.order = std::move(order);
    impl.epoch = epoch;
    impl.begin_at = position;
    impl.to_begin = impl.sampler.batches_from(position);
    ++impl.generation;
  }
  impl.left = impl.sampler.batches_from(position);
  impl.position = position;
  impl.skipped = 0;
  impl.wake_workers.notify_all();
}

void SampleLoader::restore(const LoaderState& state) {
  if (state.seed != impl_->options.seed || state.order != order()) {
    const auto text = [](const LoaderState& state) { return state.order + ", seed " + std::to_string(state.seed); };
    throw DataError("the samples had the order of " + text(state) + " and have that of " +
                        text({.seed = impl_->options.seed, .order = order()}) +
                        " now: the rest of the epoch cannot be told from what has been read",
                    "go on with the same data, seed and shuffle_window, or begin an epoch anew");
  }
  start_epoch(state.epoch, state.position);
  impl_->skipped = state.skipped;
}

LoaderState SampleLoader::state() const {
  return {impl_->epoch, impl_->position, impl_->skipped, impl_->options.seed, order()};
}

std::string SampleLoader::order() const {
  return impl_->options.shuffle ? impl_->sampler.blocks().text()
                                : std::to_string(impl_->sampler.size()) + " samples, not shuffled";
}

std::optional<LoadedBatch> SampleLoader::next() {
  Impl& impl = *impl_;
  if (impl.left == 0) {
    // Other ranks may take a rest of the epoch, so the position becomes the end on all ranks.
    if (impl.order && !impl.options.drop_last) impl.position = impl.sampler.size();
    return std::nullopt;
  }
  const auto asked_at = std::chrono::steady_clock::now();
  const std::int64_t from = impl.position;
  --impl.left;
  impl.position = std::min(from + impl.sampler.global_batch(), impl.sampler.size());
  LoadedBatch batch = impl.options.workers == 0 ? impl.read_here(from) : impl.take_complete();
  batch.global_samples = impl.position - from;
  impl.count_skipped(batch);
  if (impl.options.workers != 0 && std::exchange(impl.has_given, true)) {
    impl.follow_rate((asked_at - impl.given_at).count(), batch.usage);
    Impl::start_threads(impl_);
  }
  impl.given_at = std::chrono::steady_clock::now();
  return batch;
}

std::int64_t SampleLoader::batches_per_epoch() const {
  return impl_->sampler.batches_from(0);
}
std::int64_t SampleLoader::batches_left() const {
  return impl_->left;
}
bool SampleLoader::is_in_windows() const {
  return impl_->options.shuffle && !impl_->sampler.blocks().is_one_window();
}
std::int64_t SampleLoader::samples_per_epoch() const {
  return impl_->sampler.samples_per_epoch();
}

std::int32_t SampleLoader::queue_depth() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<std::int32_t>(
      std::count_if(impl_->begun.begin(), impl_->begun.end(), [](const auto& batch) { return batch->is_complete; }));
}

std::int32_t SampleLoader::workers() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->active;
}

const Dataset& SampleLoader::dataset() const {
  return *impl_->dataset;
}

}  // namespace dtrain::data
