#include "compression/bucket_compressor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "compression/tensor_compressor.h"
#include "dtrain/base/error.h"
#include "dtrain/base/numeric.h"
#include "dtrain/base/text.h"

namespace dtrain::train {
namespace {

// The first steps of a run, and the first steps with new buckets, take longer than later ones.
constexpr int kWarmUpSteps = 2;

std::int64_t rows_of(const at::Tensor& tensor) {
  std::int64_t farthest = -1;
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 1 || tensor.stride(d) <= farthest) continue;
    farthest = tensor.stride(d);
    rows = tensor.size(d);
  }
  return rows;
}

constexpr int kComparedSteps = 3;
constexpr std::size_t kFewest = 2;  // fewest steps of a kind for a comparison

std::string duration(double seconds) {
  return format_duration(Nanoseconds(std::llround(std::abs(seconds) * 1e9)));
}

// Returns the median without the first step, in which all ranks wait for the rank that started last.
double median_behind_first(const std::vector<double>& values) {
  std::vector<double> later(values.begin() + (values.size() > kFewest ? 1 : 0), values.end());
  return median_high(later);
}

// Compression on a CPU: comm::GradientCompressor over a model's flat memory.
class HostCompressor final : public BucketCompressor {
 public:
  HostCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats, comm::Communicator& communicator,
                 const CompressorOptions& options)
      : flats_(std::move(flats)),
        compressor_(compression_options(options), gradient_tensors(parameters, flats_), communicator),
        report_(options.name, options.key) {}

  bool compressing() const override { return compressor_.compressing(); }
  std::string_view operation() const override {
    return compressor_.options().codec.gathers && compressor_.compressing() ? "all_gather" : "all_reduce";
  }
  comm::Work exchange(const comm::FusionPlan& plan, std::size_t index, double scale) override {
    works_.push_back(compressor_.exchange(gradient_bucket(plan, index, flats_), scale));
    return works_.back();
  }
  void not_applied(std::size_t parameter) override { compressor_.not_applied(parameter); }
  void end_step() override {
    Nanoseconds exposed{0};
    for (const comm::Work& work : works_) exposed += work.timing().exposed;
    works_.clear();
    report_.add(compressor_.compressing(), exposed);
    compressor_.end_step();
  }
  void undo_step_where(const at::Tensor& /*found_inf*/) override {
    throw Error("a compressor of gradients on a CPU was asked to undo a step");
  }
  void forget_times() override { report_.forget(); }
  void report(const RunServices& run) override {
    report_.write(compressor_.statistics(), compressor_.options().codec.word, run);
  }
  void visit(StateVisitor& visitor) override {
    auto state = compressor_.save_state();
    for (auto& entry : state) visitor.reals(entry.name, entry.values);
    if (visitor.replaces()) compressor_.load_state(state);
  }

 private:
  const std::vector<at::Tensor> flats_;
  comm::GradientCompressor compressor_;
  CompressionReport report_;
  std::vector<comm::Work> works_;  // of this step
};

}  // namespace

CompressorOptions for_gradients(const comm::Compression& compression, std::uint64_t seed, std::int64_t settled_steps,
                                bool undoes_steps) {
  return {
      compression, seed, kComparedSteps, settled_steps, "gradient compression", "optimizations.gradient_compression",
      undoes_steps};
}

comm::CompressionOptions compression_options(const CompressorOptions& wanted) {
  comm::CompressionOptions options;
  options.codec = comm::codec_maker(wanted.compression);
  options.seed = wanted.seed;
  options.compared_steps = wanted.compared_steps;
  options.first_compared = wanted.settled_steps + kWarmUpSteps;
  // Two steps of the warm-up that are like later ones are enough for a comparison.
  if (options.codec.warmup_steps >= std::max<std::int64_t>(options.first_compared, 2 * kWarmUpSteps)) {
    options.compared_steps = 0;
  }
  return options;
}

std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters,
                                                   std::span<const at::Tensor> flats) {
  std::vector<comm::GradientTensor> tensors;
  for (const auto& parameter : parameters.parameters()) {
    const at::Tensor& flat = flats[parameter.group];
    const auto elements = static_cast<std::size_t>(parameter.gradient.numel());
    const auto rows = static_cast<std::size_t>(rows_of(parameter.gradient));
    tensors.push_back({parameter.name, FlatMemory::address(flat, parameter.offset), elements, rows,
                       elements / std::max<std::size_t>(1, rows), comm_type(flat.scalar_type())});
  }
  return tensors;
}

comm::GradientBucket gradient_bucket(const comm::FusionPlan& plan, std::size_t index,
                                     std::span<const at::Tensor> flats) {
  const auto& bucket = plan.buckets[index];
  const at::Tensor& flat = flats[bucket.group];
  return {bucket.items, FlatMemory::address(flat, bucket.begin), static_cast<std::size_t>(bucket.end - bucket.begin),
          comm_type(flat.scalar_type()), static_cast<int>(index)};
}

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
  run.log->log(loses ? spdlog::level::warn : spdlog::level::info, "{}", text);
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
  if (before == 0) return fmt::format("{} ({}): there is one rank, which sent nothing", name_, kind);
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

std::unique_ptr<BucketCompressor> make_bucket_compressor(const FlatParameters& parameters,
                                                         std::vector<at::Tensor> flats,
                                                         comm::Communicator& communicator,
                                                         const CompressorOptions& options) {
  const bool on_host = flats.empty() || flats.front().is_cpu();
  if (on_host) return std::make_unique<HostCompressor>(parameters, std::move(flats), communicator, options);
  return std::make_unique<TensorCompressor>(parameters, std::move(flats), communicator, options);
}

}  // namespace dtrain::train
