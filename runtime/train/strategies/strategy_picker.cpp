#include "strategies/strategy_picker.h"

#include "dtrain/rank/rank_session.h"
#include "strategies/compressed.h"
#include "strategies/replicated.h"
#include "strategies/sharded.h"
#include "strategies/strategy_report.h"

namespace dtrain::train {

namespace {

// If neither is faster, the choice is sharded, which never takes more memory.
constexpr double kEnough = 1.01;

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
                                        options_.compression, options_.seed, Fusion::settled_steps());
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
  throw run::AgreedError("the model writes its parameter '" + parameter +
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

}  // namespace dtrain::train
