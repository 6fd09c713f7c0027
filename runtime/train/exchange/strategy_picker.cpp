#include "exchange/strategy_picker.h"

#include <array>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/rank_session.h"
#include "exchange/replicated.h"
#include "exchange/sharded.h"

namespace dtrain::train {
namespace {

constexpr double kEnough = 1.01;               // a sharded step may take this much longer: the memory is worth it
constexpr std::int64_t kWorthwhile = 1 << 20;  // bytes of a rank
constexpr std::int64_t kShareOfAvailable = 2;  // short of memory: the ranks can free over half of the available memory

std::int64_t spare_bytes(const FlatParameters& parameters, const GradientStrategy& strategy,
                         const comm::FusionPlan& plan) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const FlatRange& range : strategy.spare_gradients(b)) {
      bytes += FlatMemory::whole_pages(parameters.groups()[range.group].gradients, range.begin, range.size());
    }
  }
  return bytes;
}

struct HostBytes {
  std::int64_t parameters = 0, state = 0;
  std::int64_t all() const { return parameters + state; }
};

HostBytes bytes_of_host(const StrategyFacts& facts, bool sharded) {
  if (sharded && facts.one_copy) return {facts.parameter_bytes, facts.state_bytes};
  HostBytes bytes{facts.parameter_bytes * facts.ranks_of_host, facts.state_bytes * facts.ranks_of_host};
  if (sharded) bytes.state /= facts.world_size;
  return bytes;
}

Json to_json(const HostBytes& bytes) {
  return {{"parameters", bytes.parameters}, {"optimizer_state", bytes.state}};
}

const char* name_of(bool sharded) {
  return sharded ? "sharded" : "replicated";
}

std::string time_text(const StrategyFacts& facts) {
  if (!facts.replicated_ms || !facts.sharded_ms) return {};
  const double taken = facts.sharded ? *facts.sharded_ms : *facts.replicated_ms;
  const double other = facts.sharded ? *facts.replicated_ms : *facts.sharded_ms;
  return fmt::format("; a step takes {:.2f} ms, {} {:.2f} ms", taken, name_of(!facts.sharded), other);
}

Json to_json(const GradientFacts& gradients) {
  Json json{{"sharded", gradients.sharded},
            {"bytes", gradients.bytes},
            {"kept_bytes", gradients.kept_bytes},
            {"short_of_memory", gradients.short_of_memory}};
  if (gradients.whole_ms) json["whole_ms"] = *gradients.whole_ms;
  if (gradients.sharded_ms) json["sharded_ms"] = *gradients.sharded_ms;
  return json;
}

// "; between steps a rank keeps 12.5 MiB of its 50.0 MiB of gradients (a step takes 8.00 ms, with all of them 7.95 ms)"
std::string gradients_text(const GradientFacts& gradients) {
  if (!gradients.decided) return {};
  const std::string all = format_bytes(static_cast<double>(gradients.bytes));
  std::string why;
  if (gradients.short_of_memory) {
    why = " (the host is short of memory)";
  } else if (gradients.whole_ms && gradients.sharded_ms) {
    why = gradients.sharded ? fmt::format(" (a step takes {:.2f} ms, with all of them {:.2f} ms)",
                                          *gradients.sharded_ms, *gradients.whole_ms)
                            : fmt::format(" (a step takes {:.2f} ms, without the others' {:.2f} ms)",
                                          *gradients.whole_ms, *gradients.sharded_ms);
  }
  if (!gradients.sharded) return fmt::format("; between steps a rank keeps all of its {} of gradients{}", all, why);
  return fmt::format("; between steps a rank keeps {} of its {} of gradients{}",
                     format_bytes(static_cast<double>(gradients.kept_bytes)), all, why);
}

}  // namespace

bool may_shard(const StrategyOptions& options, int world_size) {
  return world_size > 1 && std::holds_alternative<comm::NoCompression>(options.compression);
}

StrategyPicker::StrategyPicker(const RunServices& run, FlatParameters& parameters, FlatOptimizer& optimizer,
                               GradientExchange& exchange, Fusion& fusion, WindowScale& scale, StepsInFlight& in_flight,
                               const StrategyOptions& options, std::function<bool()> step_is_settled)
    : run_(run),
      parameters_(parameters),
      optimizer_(optimizer),
      exchange_(exchange),
      fusion_(fusion),
      scale_(scale),
      in_flight_(in_flight),
      options_(options),
      step_is_settled_(std::move(step_is_settled)),
      gradients_(run, parameters, exchange, options.gradients) {
  const bool sharded = may_shard() && options_.sharded == config::ShardedOptimizer::kOn;
  if (may_shard() && options_.sharded == config::ShardedOptimizer::kAuto)
    comparison_.emplace(run_.communicator, kEnough);
  use(sharded);
  if (may_shard() && !comparison_) write_choice();
}

StrategyPicker::~StrategyPicker() {
  exchange_.forget_strategy();
}

bool StrategyPicker::may_shard() const {
  return train::may_shard(options_, run_.communicator.world_size());
}

std::unique_ptr<GradientStrategy> StrategyPicker::make(bool sharded) {
  comm::Communicator& communicator = run_.device_communicator;
  if (is_compressed()) {
    return std::make_unique<Compressed>(parameters_, optimizer_, communicator, run_.recorder, scale_,
                                        options_.compression, options_.seed, fusion_.settled_steps());
  }
  if (sharded) return std::make_unique<Sharded>(parameters_, optimizer_, communicator, run_.recorder, scale_);
  return std::make_unique<Replicated>(parameters_, optimizer_, communicator, run_.recorder, scale_);
}

// Ends the old strategy first: it puts parameters and state back to where the new one expects them.
void StrategyPicker::use(bool sharded) {
  if (strategy_) strategy_->complete_state();
  strategy_.reset();
  strategy_ = make(sharded);
  use_new_plan();
}

void StrategyPicker::use_new_plan() {
  strategy_->set_plan(fusion_.plan());
  exchange_.use(*strategy_, fusion_.plan());
}

void StrategyPicker::begin_batch() {
  batch_began_ = run_.clock.monotonic();
}

void StrategyPicker::end_batch(bool stepped, std::int64_t batch) {
  if (comparison_) in_flight_.wait_for_all();  // a turn's times are then its own
  window_time_ += run_.clock.monotonic() - batch_began_;
  if (!stepped) return;
  if (!fusion_.settling() && step_is_settled_()) {
    if (comparison_) {
      end_turn(batch);
    } else if (gradients_.end_step(*strategy_, fusion_.plan(), batch, to_seconds(window_time_) * 1e3)) {
      write_choice();
    }
  }
  window_time_ = Nanoseconds{0};
}

void StrategyPicker::end_turn(std::int64_t batch) {
  if (comparison_->end_step(batch, to_seconds(window_time_) * 1e3)) {
    use(comparison_->second());
    fusion_.forget_exposed();
  }
  if (!comparison_->done()) return;
  measured_.replicated_ms = comparison_->first_ms();
  measured_.sharded_ms = comparison_->second_ms();
  for (const auto& turn : comparison_->turns()) {
    measured_.turns.push_back({turn.second, turn.first_batch, turn.last_batch});
  }
  write_choice();
  comparison_.reset();
}

void StrategyPicker::write_choice() {
  if (!run_.is_first_rank()) return;
  StrategyFacts facts;
  facts.gradients = gradients_.facts(*strategy_, fusion_.plan());
  facts.sharded = strategy_->layout().sharded;
  facts.one_copy = strategy_->layout().one_copy;
  facts.on_gpus = !parameters_.memory().on_host();
  facts.world_size = run_.world.size;
  facts.ranks_of_host = run_.world.local_size;
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    const auto& group = parameters_.groups()[g];
    const std::int64_t bytes = group.values.numel() * group.element_size;
    facts.parameter_bytes += bytes;
    facts.state_bytes += bytes * static_cast<std::int64_t>(optimizer_.state_tensors());
  }
  facts.replicated_ms = measured_.replicated_ms;
  facts.sharded_ms = measured_.sharded_ms;
  facts.turns = measured_.turns;
  const Json report = describe_strategy(facts);
  run_.update_plan("strategy", report);
  run_.log->info("{}", report["text"].get<std::string>());
}

void StrategyPicker::check_write(const std::string& parameter) const {
  const StateLayout layout = strategy_->layout();
  if (!layout.one_copy && !(layout.sharded && options_.sharded == config::ShardedOptimizer::kOn)) return;
  throw rank::AgreedError("the model writes its parameter '" + parameter +
                              "' itself, which sharded updates do not allow: ranks share parameters",
                          "set optimizations.sharded_optimizer: false");
}

void StrategyPicker::stop_sharding(const std::string& parameter) {
  const bool sharded = strategy_->layout().sharded;
  if (!sharded && !comparison_) return;
  comparison_.reset();
  measured_ = {};
  if (sharded) use(false);
  write_choice();
  if (!run_.is_first_rank()) return;
  run_.log->warn(
      "the model writes its parameter '{}' itself: updates stay replicated, as with sharded_optimizer: false",
      parameter);
}

GradientSharding::GradientSharding(const RunServices& run, FlatParameters& parameters, GradientExchange& exchange,
                                   config::ShardedGradients wanted)
    : run_(run), parameters_(parameters), exchange_(exchange) {
  const bool possible = parameters.memory().on_host() && run.world.size > 1;
  decided_ = wanted != config::ShardedGradients::kAuto || !possible;
  sharded_ = wanted == config::ShardedGradients::kOn && possible;
  if (sharded_) sharded_ = exchange_.free_spare_gradients(true) > 0;
  if (wanted != config::ShardedGradients::kOn || sharded_ || !run.is_first_rank()) return;
  run.log->warn("optimizations.sharded_gradients: true has no effect {}",
                run.world.size == 1 ? "with one rank"
                                    : "here: the kernel takes none of their memory back (locked memory, "
                                      "vm.overcommit_memory=2, or less than a page)");
}

bool GradientSharding::end_step(const GradientStrategy& strategy, const comm::FusionPlan& plan, std::int64_t batch,
                                double milliseconds) {
  if (decided_ || !strategy.layout().sharded || strategy.layout().one_copy) return false;
  if (!comparison_) {
    begin(spare_bytes(parameters_, strategy, plan));
    return decided_;
  }
  if (comparison_->end_step(batch, milliseconds)) {
    sharded_ = comparison_->second();
    exchange_.free_spare_gradients(sharded_);
  }
  decided_ = comparison_->done();
  return decided_;
}

// The ranks agree, because hosts may differ in memory, and ranks in the sizes of their parts.
void GradientSharding::begin(std::int64_t spare) {
  const auto available = available_memory();
  const std::int64_t of_host = spare * run_.world.local_size;
  const bool is_short = available && of_host * kShareOfAvailable > static_cast<std::int64_t>(*available);
  std::array<std::uint8_t, 2> any{spare >= kWorthwhile, is_short};
  run_.communicator.all_reduce(any.data(), any.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax}).wait();
  short_of_memory_ = any[1] != 0;
  sharded_ = short_of_memory_;
  decided_ = short_of_memory_ || any[0] == 0;
  if (sharded_) exchange_.free_spare_gradients(true);
  if (!decided_) comparison_.emplace(run_.communicator, kEnough);
}

GradientFacts GradientSharding::facts(const GradientStrategy& strategy, const comm::FusionPlan& plan) const {
  GradientFacts facts;
  facts.decided = decided_;
  facts.sharded = sharded_ && strategy.layout().sharded;
  facts.short_of_memory = short_of_memory_;
  for (const auto& group : parameters_.groups()) facts.bytes += group.gradients.numel() * group.gradient_size;
  facts.kept_bytes = facts.sharded ? facts.bytes - spare_bytes(parameters_, strategy, plan) : facts.bytes;
  if (comparison_ && decided_) {
    facts.whole_ms = comparison_->first_ms();
    facts.sharded_ms = comparison_->second_ms();
  }
  return facts;
}

Json describe_strategy(const StrategyFacts& facts) {
  const HostBytes bytes = bytes_of_host(facts, facts.sharded);
  const HostBytes replicated = bytes_of_host(facts, false);
  Json json{{"strategy", name_of(facts.sharded)},
            {"one_copy", facts.one_copy},
            {"host_bytes", to_json(bytes)},
            {"replicated_host_bytes", to_json(replicated)}};
  if (facts.replicated_ms) json["replicated_ms"] = *facts.replicated_ms;
  if (facts.sharded_ms) json["sharded_ms"] = *facts.sharded_ms;
  for (const StrategyTurn& turn : facts.turns) {
    json["turns"].push_back(
        {{"strategy", name_of(turn.sharded)}, {"first_batch", turn.first_batch}, {"last_batch", turn.last_batch}});
  }
  const int sharers = facts.on_gpus ? facts.ranks_of_host : 1;
  const char* const place = facts.on_gpus ? "a GPU" : "a host";
  const auto size = [&](const HostBytes& of) { return format_bytes(static_cast<double>(of.all()) / sharers); };
  std::string text;
  if (facts.sharded) {
    text = fmt::format("sharded updates: {} of parameters and optimizer state {} instead of {}", size(bytes), place,
                       size(replicated));
    if (facts.one_copy) text += fmt::format(" (one copy for {} ranks)", facts.ranks_of_host);
  } else {
    text = fmt::format("replicated updates: {} of parameters and optimizer state {}", size(bytes), place);
  }
  text += time_text(facts);
  if (facts.gradients) {
    json["gradients"] = to_json(*facts.gradients);
    if (facts.sharded) text += gradients_text(*facts.gradients);
  }
  json["text"] = text;
  return json;
}

}  // namespace dtrain::train
