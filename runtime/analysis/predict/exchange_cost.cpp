#include "predict/exchange_cost.h"

#include <algorithm>
#include <map>
#include <span>

#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

constexpr std::size_t kSampled = 2'000;      // rows
constexpr std::int64_t kSmallBytes = 1'024;  // and less: nothing but latency

using Lines = std::span<const CollectiveLine>;

// Returns a rank's collectives of one batch.
Lines of_batch(const RankProfile& rank, std::int64_t batch) {
  const auto before = [](const CollectiveLine& line, std::int64_t value) { return line.batch < value; };
  const auto after = [](std::int64_t value, const CollectiveLine& line) { return value < line.batch; };
  const auto first = std::lower_bound(rank.collectives.begin(), rank.collectives.end(), batch, before);
  const auto last = std::upper_bound(first, rank.collectives.end(), batch, after);
  return {first, last};
}

struct Bucket {
  std::vector<double> seconds, exposed_s;
  double bytes = 0;
  double ended = 0;  // sum of places in the order of ending
};

class Samples {
 public:
  void add_row(const Evidence& evidence, std::int64_t batch) {
    std::map<CollectiveKey, CollectiveLine> least;
    for (const RankProfile& rank : evidence.run.ranks) {
      for (const CollectiveLine& line : of_batch(rank, batch)) {
        if (line.bucket < 0) {
          if (line.bytes <= kSmallBytes) latency_.push_back(seconds(line));
          continue;
        }
        const auto [at, is_new] = least.try_emplace({line.operation, line.bucket}, line);
        if (is_new) continue;
        CollectiveLine& known = at->second;
        if (seconds(line) < seconds(known)) known.ended_ns = known.started_ns + (line.ended_ns - line.started_ns);
        known.exposed_ns = std::min(known.exposed_ns, line.exposed_ns);
        known.sequence = std::max(known.sequence, line.sequence);
      }
    }
    for (const auto& [key, line] : least) {
      Bucket& bucket = buckets_[key];
      bucket.seconds.push_back(seconds(line));
      bucket.exposed_s.push_back(static_cast<double>(line.exposed_ns) / 1e9);
      bucket.bytes = static_cast<double>(line.bytes);
      bucket.ended += static_cast<double>(line.sequence);
    }
    ++rows_;
  }

  std::optional<ExchangeCost> fit() const {
    ExchangeCost model;
    // The lower quartile is used because most small collectives include waiting for other ranks.
    std::vector<double> latencies = latency_;
    const double latency_s = quantile(latencies, 0.25);
    double last_ended = 0;
    for (const auto& [key, bucket] : buckets_) {
      if (2 * bucket.seconds.size() < rows_) continue;  // the bucket is of an abandoned plan
      const double transfer_s = median_low(bucket.seconds);
      const double exposed_s = std::min(transfer_s, median_low(bucket.exposed_s));
      model.transfer_s += transfer_s;
      model.mean_s += mean(bucket.seconds);
      model.latency_s += std::min(transfer_s, latency_s);
      model.exposed_s += exposed_s;
      model.bytes += bucket.bytes;
      model.gathers |= key.operation == Operation::kReduceScatter || key.operation == Operation::kAllGather;
      ++model.buckets;
      const double ended = bucket.ended / static_cast<double>(bucket.seconds.size());
      if (model.buckets > 1 && ended < last_ended) continue;
      last_ended = ended;
      model.last_s = transfer_s;
      model.last_exposed_share = transfer_s > 0 ? exposed_s / transfer_s : 0;
    }
    return model.buckets > 0 && model.transfer_s > 0 ? std::optional(model) : std::nullopt;
  }

 private:
  static double seconds(const CollectiveLine& line) {
    return static_cast<double>(std::max<std::int64_t>(0, line.ended_ns - line.started_ns)) / 1e9;
  }
  std::map<CollectiveKey, Bucket> buckets_;
  std::vector<double> latency_;
  std::size_t rows_ = 0;
};

}  // namespace

double ExchangeCost::exposed_if(double bandwidth, double latency, double bytes_factor) const {
  const double scale = bytes_factor / bandwidth;
  const double other_s = latency_s * latency + (transfer_s - latency_s) * scale;
  const double last_latency_s = buckets > 0 ? std::min(last_s, latency_s / buckets) : 0;
  const double last_other_s = last_latency_s * latency + (last_s - last_latency_s) * scale;
  return std::max(last_exposed_share * last_other_s, exposed_s + other_s - transfer_s);
}

std::optional<ExchangeCost> fit_exchange_cost(const Evidence& evidence) {
  const auto& rows = evidence.rows.rows();
  std::vector<std::int64_t> batches;
  for (const Row& row : rows) {
    if (row.exchanged && !row.window) batches.push_back(row.last_batch);
  }
  Samples samples;
  const std::size_t count = std::min(batches.size(), kSampled);
  for (std::size_t i = 0; i < count; ++i) samples.add_row(evidence, batches[i * batches.size() / count]);
  return samples.fit();
}

}  // namespace dtrain::analysis
