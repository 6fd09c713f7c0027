#include "compression/compression_report.h"

#include <algorithm>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/statistics.h"
#include "dtrain/base/units.h"

namespace dtrain::train {

namespace {

constexpr std::size_t kFewest = 2;  // fewest steps of a kind for a comparison

std::string duration(double seconds) {
  return format_duration(Nanoseconds(std::llround(std::abs(seconds) * 1e9)));
}

// Returns the median without the first step, in which all ranks wait for the rank that started last.
double median_behind_first(const std::vector<double>& values) {
  std::vector<double> later(values.begin() + (values.size() > kFewest ? 1 : 0), values.end());
  return median_high(later);
}

}  // namespace

void CompressionReport::add(bool compressed, Nanoseconds exposed) {
  (compressed ? compressed_s_ : plain_s_).push_back(to_seconds(exposed));
}

void CompressionReport::forget() {
  plain_s_.clear();
  compressed_s_.clear();
}

void CompressionReport::write(const comm::CompressionStatistics& statistics, const char* codec,
                              const RunServices& run) const {
  Json json = account(statistics, codec, run.communicator);
  if (!run.is_first_rank()) return;
  bool loses = false;
  const std::string text = sentence(json, loses);
  json["text"] = text;
  json["loses"] = loses;
  run.update_plan("compression", json);
  if (loses) {
    run.log->warn("{}", text);
  } else {
    run.log->info("{}", text);
  }
}

Json CompressionReport::account(const comm::CompressionStatistics& s, const char* codec,
                                comm::Communicator& communicator) const {
  const bool comparable = plain_s_.size() >= kFewest && compressed_s_.size() >= kFewest;
  double times[3] = {comparable ? median_behind_first(plain_s_) : 0,
                     comparable ? median_behind_first(compressed_s_) : 0, to_seconds(s.coding)};
  communicator.all_reduce(times, 3, comm::DataType::kFloat64, {.post_scale = 1.0 / communicator.world_size()}).wait();
  std::int64_t values[2] = {s.saturated, s.underflowed};  // of all ranks
  communicator.all_reduce(values, 2, comm::DataType::kInt64).wait();
  Json json = {
      {"kind", codec},
      {"steps", s.steps},
      {"compressed_steps", s.compressed_steps},
      {"uncompressed_bytes", std::llround(s.uncompressed_bytes)},
      {"sent_bytes", std::llround(s.sent_bytes)},
      {"plain_bytes", std::llround(s.plain_bytes)},
      {"coding_s", s.coding.count() > 0 ? Json(times[2]) : Json()},  // null: not measured
      {"saturated_values", values[0]},
      {"underflowed_values", values[1]},
      {"compared_steps", comparable ? plain_s_.size() : 0},
      {"exposed_uncompressed_s", comparable ? Json(times[0]) : Json()},
      {"exposed_compressed_s", comparable ? Json(times[1]) : Json()},
      {"gained_s", comparable ? Json((times[0] - times[1]) * static_cast<double>(s.compressed_steps)) : Json()}};
  return json;
}

std::string CompressionReport::sentence(const Json& account, bool& loses) const {
  const double before = account["uncompressed_bytes"];
  const double after = account["sent_bytes"];
  const std::int64_t steps = account["compressed_steps"];
  loses = false;
  if (steps == 0) return fmt::format("{}: no step was compressed", name_);
  const auto kind = account["kind"].get<std::string>();
  std::string text = fmt::format("{} ({}): each rank sent {} instead of {} ({:.1f}x less)", name_, kind,
                                 format_bytes(after), format_bytes(before), after > 0 ? before / after : 0);
  if (const double plain = account["plain_bytes"]; plain > 0) {
    text += fmt::format(", {} of it float64, sent uncompressed", format_bytes(plain));
  }
  std::string cut_text;
  const std::int64_t cut = account["saturated_values"];
  const std::int64_t small = account["underflowed_values"];
  if (cut > 0) {
    cut_text +=
        fmt::format("; {} values were too large for {} and were clipped (the sum over all ranks must fit)", cut, kind);
  }
  if (small > 0) {
    cut_text += fmt::format("; {} values were too small for {} and waited until they added up", small, kind);
  }
  if (cut + small > 0 && kind == "fp16") cut_text += ": bf16 holds them";
  if (account["gained_s"].is_null()) return text + "; too few steps to measure the gain" + cut_text;
  const double gained = account["gained_s"];
  text += fmt::format(", a step's exchange held up the training for {} instead of {}: {} {} in {} steps",
                      duration(account["exposed_compressed_s"]), duration(account["exposed_uncompressed_s"]),
                      gained >= 0 ? "gained" : "LOST", duration(gained), steps);
  loses = gained < 0;
  if (loses) text += fmt::format("; switch it off here ({}: false)", key_);
  return text + cut_text;
}

}  // namespace dtrain::train
