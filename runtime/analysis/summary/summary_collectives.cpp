#include <algorithm>
#include <map>

#include "measure/distribution.h"
#include "read/json_fields.h"
#include "summary/summarize.h"

namespace dtrain::analysis {
namespace {

struct RankTotals {
  std::int64_t count = 0, bytes = 0;
};

struct Totals {
  std::int64_t count = 0, bytes = 0;  // of the rank with most
  std::int64_t exposed_ns = 0;        // of all
  Distribution durations;
  std::vector<double> bandwidths;  // of those with a line of their own
};

}  // namespace

void add_collectives(const RunProfile& run, RunSummary& summary) {
  std::map<CollectiveKey, Totals> all;
  for (const RankProfile& rank : run.ranks) {
    std::map<CollectiveKey, RankTotals> own;
    for (const CollectiveLine& line : rank.collectives) {
      const CollectiveKey key{line.operation, line.bucket};
      RankTotals& mine = own[key];
      ++mine.count;
      add_to(mine.bytes, line.bytes);
      Totals& totals = all[key];
      add_to(totals.exposed_ns, line.exposed_ns);
      totals.durations.add(line.ended_ns - line.started_ns);
      totals.bandwidths.push_back(static_cast<double>(line.bus_bandwidth));
    }
    for (const WindowLine& window : rank.windows) {
      for (const CollectiveWindow& line : window.collectives) {
        const CollectiveKey key{line.operation, line.bucket};
        add_to(own[key].count, line.count);
        add_to(own[key].bytes, line.bytes);
        add_to(all[key].exposed_ns, line.exposed_ns);
      }
    }
    for (const auto& [key, sketch] : rank.window_sketches.collectives) all[key].durations.add(sketch);
    for (const auto& [key, mine] : own) {
      all[key].count = std::max(all[key].count, mine.count);
      all[key].bytes = std::max(all[key].bytes, mine.bytes);
    }
  }
  for (auto& [key, totals] : all) {
    summary.collectives.push_back({std::string(name_of(key.operation)), key.bucket, totals.count, totals.bytes,
                                   totals.durations.quantile_s(0.50),
                                   static_cast<double>(totals.exposed_ns) / 1e9 / static_cast<double>(run.ranks.size()),
                                   quantile(totals.bandwidths, 0.50)});
  }
}

}  // namespace dtrain::analysis
