#include "dtrain/data/tools.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "batch_job.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/data/epoch_order.h"
#include "dtrain/data/image.h"
#include "images/view.h"
#include "worker_count.h"

namespace dtrain::data {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kSampled = 64;  // number of samples whose stages are timed
constexpr double kScaling = 0.6;       // share of ideal scaling below which workers share more than cores

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns an allocator like a loader's, which reuses memory, so that its pages are mapped.
BatchAllocator reused_memory() {
  return [pool = BatchPool::create(4)](std::size_t bytes) { return pool->take(bytes); };
}

// Decodes only the pixels that the transforms need.
void decode_alone(const Value& file, const std::vector<Transform>& transforms, const PictureOptions& options,
                  RandomStream& random) {
  decode_region({file.data.get(), file.bytes()}, [&](Size picture) {
    View view(picture);
    collect(view, transforms, 0, random);
    return view.request(options.scaled_decoding);
  });
}

void time_stages(const SampleSource& source, const Dataset& dataset, const std::vector<Transform>& transforms,
                 const PictureOptions& options, const EpochOrder& order, ThroughputReport& report) {
  const std::int64_t count = std::min(kSampled, source.size());
  std::vector<Sample> samples;
  ThreadUsage thread(true);
  thread.begin();
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(source.read({}, order.at(i)));
  const double reading = seconds_since(start);
  const ReadUsage used = thread.end();
  std::vector<std::int64_t> numbers;
  for (const Sample& sample : samples) {
    numbers.push_back(sample.index);
    report.bytes += static_cast<double>(sample.values[0].bytes());
  }
  const BatchAllocator allocate = reused_memory();
  double decode = 0, whole = 0;
  for (int round = 0; round < 2; ++round) {  // the first round, with unmapped pages and cold caches, does not count
    const auto decoding = Clock::now();
    for (const Sample& sample : samples) {
      RandomStream random = sample_stream({}, sample.index, source.stage());
      decode_alone(sample.values[0], transforms, options, random);
    }
    decode = seconds_since(decoding);
    const auto all = Clock::now();
    const auto builder = dataset.begin({}, count, allocate);
    builder->read(0, numbers);
    const HostBatch batch = builder->finish();
    whole = seconds_since(all);  // the files are in the system's cache
  }
  const auto each = static_cast<double>(count);
  report.read_s = reading / each;
  report.decode_s = decode / each;
  report.transform_s = std::max(0.0, whole - decode) / each;
  report.waiting_s = static_cast<double>(used.waiting_ns()) / 1e9 / each;
  report.storage_bytes = static_cast<double>(used.disk_bytes) / each;
  report.bytes /= each;
  for (const Field& field : dataset.fields()) report.output_bytes += static_cast<double>(field.bytes());
}

// Returns the samples per second of this number of threads, which read batches of the epoch.
double rate_with(int workers, const Dataset& dataset, const EpochOrder& order, std::chrono::duration<double> duration) {
  std::atomic<std::int64_t> next{0}, done{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr error;
  const auto start = Clock::now();
  const auto work = [&] {
    try {
      const BatchAllocator allocate = reused_memory();
      std::vector<std::int64_t> samples(kBatch);
      while (!stop && seconds_since(start) < duration.count()) {
        const std::int64_t batch = next++;
        for (std::int64_t i = 0; i < kBatch; ++i) {
          samples[static_cast<std::size_t>(i)] = order.at((batch * kBatch + i) % order.size());
        }
        const auto builder = dataset.begin({{}, batch * kBatch}, kBatch, allocate);
        builder->read(0, samples);
        builder->finish();
        done += kBatch;
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      stop = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    const BlockedSignals blocked;
    for (int i = 0; i < std::max(workers, 1); ++i) threads.emplace_back(work);
  }
  if (error) std::rethrow_exception(error);
  return static_cast<double>(done) / seconds_since(start);
}

void judge(ThroughputReport& report, bool scaled_decoding) {
  const auto most = std::max_element(report.rates.begin(), report.rates.end(), [](const auto& a, const auto& b) {
    return a.samples_per_second < b.samples_per_second;
  });
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double with_one = 0, many = 0;
  int useful = 1;
  for (const WorkerRate& rate : report.rates) {
    if (rate.workers == 1) with_one = rate.samples_per_second;
    if (rate.workers <= cores && rate.samples_per_second > many) {
      many = rate.samples_per_second;
      useful = std::max(rate.workers, 1);
    }
  }
  if (report.waiting_s > report.decode_s + report.transform_s) {
    report.limit = "disk";
    report.advice = report.bytes < 1 << 20
                        ? "pictures come from storage one by one: pack them into shards (dtrain data pack), which are "
                          "read in sequence"
                        : "use a faster disk, or copy the data to one (data.training)";
  } else if (with_one > 0 && useful > 1 && many < kScaling * useful * with_one) {
    report.limit = "memory";
    report.advice = "more workers than " + std::to_string(most->workers) + " bring little: set data.workers to that";
  } else if (report.decode_s >= report.transform_s) {
    report.limit = "decode";
    report.advice = std::string("more cores for data.workers") +
                    (scaled_decoding ? "" : ", data.scaled_decoding: true") + ", or smaller pictures in the shards";
  } else {
    report.limit = "transform";
    report.advice = "more cores for data.workers, or fewer transforms (color_jitter takes the most)";
  }
}

}  // namespace

ThroughputReport measure_throughput(const std::shared_ptr<const SampleSource>& source,
                                    const std::vector<Transform>& transforms, const PictureOptions& options,
                                    const std::vector<int>& workers, std::chrono::duration<double> duration) {
  const std::shared_ptr<const Dataset> dataset = transformed(source, transforms, options);
  const EpochOrder order(std::make_shared<BlockTable>(source->size(), source->blocks()), 0, 0);
  ThroughputReport report;
  time_stages(*source, *dataset, transforms, options, order, report);
  for (const int count : workers) report.rates.push_back({count, rate_with(count, *dataset, order, duration)});
  judge(report, options.scaled_decoding);
  return report;
}

}  // namespace dtrain::data
