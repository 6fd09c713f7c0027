#include "step/memory_format.h"

#include <cstdio>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "dtrain/host/cpu.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::train {
namespace {

// A smaller gain is noise, and the order of stock libtorch stays.
constexpr double kClearlyFaster = 0.98;

const char* word_for(bool channels_last) {
  return channels_last ? "channels_last" : "contiguous";
}

}  // namespace

MemoryFormat::MemoryFormat(const RunServices& run, FlatParameters& parameters, StepsInFlight& in_flight,
                           const StepOptions& options)
    : run_(run),
      parameters_(parameters),
      in_flight_(in_flight),
      options_(options),
      cache_(options.fusion.cache_folder, "memory_format", key()) {
  if (!parameters.has_convolution_weights()) return;
  if (options.memory_format != config::MemoryFormat::kAuto) {
    use(options.memory_format == config::MemoryFormat::kChannelsLast);
    write_choice();
    return;
  }
  if (options.alone) {
    use(remembered().value_or(false));
    return;
  }
  if (run.is_first_rank()) {
    known_ = remembered();
    run.control.set("train/memory-format", known_ ? word_for(*known_) : "");
  } else if (const std::string word = run.control.get("train/memory-format"); !word.empty()) {
    known_ = word == word_for(true);
  }
  comparison_.emplace(run.communicator, kClearlyFaster);
}

void MemoryFormat::use(bool channels_last) {
  channels_last_ = channels_last;
  parameters_.set_channels_last(channels_last);
}

void MemoryFormat::begin_batch() {
  if (comparison_) batch_began_ = run_.clock.monotonic();
}

bool MemoryFormat::end_batch(bool stepped, std::int64_t batch) {
  if (!comparison_) return false;
  in_flight_.wait_for_all();  // so that each turn is timed separately
  window_time_ += run_.clock.monotonic() - batch_began_;
  if (!stepped) return false;
  comparison_->end_step(batch, to_seconds(std::exchange(window_time_, Nanoseconds{0})) * 1e3);
  const bool was = channels_last_;
  use(comparison_->done() && known_ ? *known_ : comparison_->second());
  if (comparison_->done()) {
    if (!known_ && run_.is_first_rank()) cache_.store({{"format", word_for(channels_last_)}}, run_.log);
    write_choice();
    comparison_.reset();
  }
  return channels_last_ != was;
}

void MemoryFormat::write_choice() {
  if (!run_.is_first_rank()) return;
  Json report{{"format", word_for(channels_last_)}};
  std::string text = std::string("memory format ") + word_for(channels_last_);
  if (comparison_) {
    report["contiguous_ms"] = comparison_->first_ms();
    report["channels_last_ms"] = comparison_->second_ms();
    report["remembered"] = known_.has_value();
    Json turns = Json::array();
    for (const auto& turn : comparison_->turns()) {
      turns.push_back(
          {{"format", word_for(turn.second)}, {"first_batch", turn.first_batch}, {"last_batch", turn.last_batch}});
    }
    report["turns"] = std::move(turns);
    char times[128];
    std::snprintf(times, sizeof times, ": a step takes %.2f ms, %s %.2f ms",
                  channels_last_ ? comparison_->second_ms() : comparison_->first_ms(), word_for(!channels_last_),
                  channels_last_ ? comparison_->first_ms() : comparison_->second_ms());
    text += times;
    if (known_) text += ", as an earlier run has found";
    run_.log->info("{}", text);
  }
  run_.update_plan("memory_format", report);
}

void MemoryFormat::visit(StateVisitor& visitor) {
  if (!parameters_.has_convolution_weights() || options_.memory_format != config::MemoryFormat::kAuto || options_.alone)
    return;
  std::int64_t steps = comparison_ ? comparison_->steps() : -1;
  bool channels_last = channels_last_;
  visitor.number("steps", steps);
  visitor.number("channels_last", channels_last);
  if (!visitor.replaces()) return;
  use(channels_last);
  if (steps < 0) {
    comparison_.reset();
    write_choice();
  } else {
    comparison_.emplace(run_.communicator, kClearlyFaster);
    comparison_->go_on_after(static_cast<int>(steps));
  }
}

Json MemoryFormat::key() const {
  const host::Processor processor = host::processor();
  Json shapes = Json::array();
  for (const auto& parameter : parameters_.parameters()) shapes.push_back(parameter.gradient.sizes().vec());
  return {{"dtrain", rank::version()},
          {"libtorch", TORCH_VERSION},
          {"processor", processor.name + " " + processor.revision},
          {"device", parameters_.memory().device().str()},
          {"gpu", options_.fusion.gpu},
          {"threads", at::get_num_threads()},
          {"ranks", run_.world.size},
          {"parameters", shapes},
          {"batch", options_.fusion.batch_per_rank},
          {"precision", options_.fusion.precision}};
}

std::optional<bool> MemoryFormat::remembered() const {
  const auto answer = cache_.find(run_.log);
  const auto format = answer ? answer->find("format") : Json::const_iterator();
  if (!answer || format == answer->end()) return std::nullopt;
  return *format == word_for(true);
}

}  // namespace dtrain::train
