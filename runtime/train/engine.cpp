#include "engine.h"

#include <algorithm>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "alone.h"
#include "dtrain/base/error.h"
#include "replicated.h"
#include "startup_checks.h"
#include "strategy_report.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

// Tells the exchange that backward has finished a gradient. Autograd calls it on the thread that runs backward, which
// for CPU models is the one that called it.
class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  ReadyHook(GradientExchange& exchange, std::size_t index) : exchange_(exchange), index_(index) {}
  void operator()(const torch::autograd::Variable&) override { exchange_.gradient_ready(index_); }

 private:
  GradientExchange& exchange_;
  std::size_t index_;
};

}  // namespace

Engine::Engine(TrialContext& context, run::RankSession& session, const EngineOptions& options)
    : session_(session),
      options_(options),
      communicator_(session.communicator()),
      recorder_(session.recorder()),
      log_(communicator_, recorder_),
      model_(context.wrapped().model) {
  const auto& wrapped = context.wrapped();
  if (!model_) throw ConfigError("the trial handed over no model", "call context.wrap_model() in its constructor");
  if (!wrapped.optimizer) {
    throw ConfigError("the trial handed over no optimizer", "call context.wrap_optimizer() in its constructor");
  }
  const bool one_host = session.world().local_size == session.world().size;
  if (options_.fusion.auto_tune && !one_host && options_.sharded == config::ShardedOptimizer::kOn) {
    throw ConfigError(
        "auto_tune_tensor_fusion is not supported yet with sharded_optimizer: true over several hosts, "
        "where every change of buckets would send the optimizer's state around",
        "leave sharded_optimizer at auto, or switch the tuner off");
  }
  options_.fusion.aggregation_frequency = options_.aggregation_frequency;
  options_.fusion.sharded = may_shard() && options_.sharded == config::ShardedOptimizer::kOn;
  compare_models(*model_, session.control());
  parameters_ = std::make_unique<FlatParameters>(*model_, communicator_);
  broadcast_model(*model_, communicator_);
  fusion_ = std::make_unique<Fusion>(*parameters_, session, options_.fusion);
  optimizer_ = std::make_unique<FlatOptimizer>(*wrapped.optimizer, wrapped.schedule, *parameters_);
  exchange_ = std::make_unique<GradientExchange>(*parameters_, communicator_, recorder_);
  if (may_shard() && options.sharded == config::ShardedOptimizer::kAuto) trial_.emplace(communicator_);
  use_strategy(options_.fusion.sharded);
  if (options.local_sgd && !options.alone) {
    local_ = std::make_unique<LocalSteps>(*options.local_sgd, *parameters_, fusion_->plan(), communicator_, recorder_,
                                          options.seed);
  }
  if (may_shard() && !trial_) tell_strategy();
  install_hooks();
}

Engine::~Engine() {
  remove_hooks();
}

bool Engine::may_shard() const {
  return communicator_.world_size() > 1 && !options_.local_sgd && !options_.alone &&
         options_.compression.kind == config::CompressionKind::kNone;
}

void Engine::use_strategy(bool sharded) {
  // A window's gradients: the mean over ranks, and over its batches if so configured.
  const double batches = options_.average_aggregated_gradients ? options_.aggregation_frequency : 1;
  const double scale = 1.0 / (batches * communicator_.world_size());
  if (sharded_) sharded_->complete_state();
  sharded_ = nullptr;
  strategy_.reset();  // one puts parameters and state back where the next one expects them
  if (options_.alone) {
    const bool parts = options_.sharded == config::ShardedOptimizer::kOn;
    strategy_ = std::make_unique<Alone>(*parameters_, *optimizer_, communicator_, recorder_, parts);
  } else if (options_.compression.kind != config::CompressionKind::kNone) {
    auto compressed = std::make_unique<Compressed>(*parameters_, *optimizer_, communicator_, recorder_, scale,
                                                   options_.compression, options_.seed, fusion_->settled_steps());
    compressed_ = compressed.get();
    strategy_ = std::move(compressed);
  } else if (sharded) {
    auto parts = std::make_unique<Sharded>(*parameters_, *optimizer_, communicator_, recorder_, scale);
    sharded_ = parts.get();
    strategy_ = std::move(parts);
  } else {
    strategy_ = std::make_unique<Replicated>(*parameters_, *optimizer_, communicator_, recorder_, scale);
  }
  strategy_->set_plan(fusion_->plan());
  exchange_->use(*strategy_, fusion_->plan());
}

void Engine::try_strategies() {
  const double milliseconds = to_seconds(window_time_ + session_.clock().monotonic() - batch_began_) * 1e3;
  if (trial_->end_step(batches_, milliseconds)) {
    use_strategy(trial_->sharded());
    fusion_->forget_exposed();
  }
  if (trial_->done()) {
    tell_strategy();
    trial_.reset();
  }
}

void Engine::tell_strategy() {
  if (session_.world().rank != 0) return;
  StrategyFacts facts;
  facts.sharded = sharded_ != nullptr;
  facts.one_copy = sharded_ && sharded_->one_copy();
  facts.world_size = session_.world().size;
  facts.ranks_of_host = session_.world().local_size;
  for (std::size_t g = 0; g < parameters_->groups().size(); ++g) {
    const auto& group = parameters_->groups()[g];
    const std::int64_t bytes = group.values.numel() * group.element_size;
    facts.parameter_bytes += bytes;
    facts.state_bytes += bytes * static_cast<std::int64_t>(optimizer_->state(g).size());
  }
  if (trial_) {
    facts.replicated_ms = trial_->replicated_ms();
    facts.sharded_ms = trial_->sharded_ms();
    facts.turns = trial_->turns();
  }
  const Json report = describe_strategy(facts);
  session_.update_plan("strategy", report);
  session_.log()->info("{}", report["text"].get<std::string>());
}

void Engine::install_hooks() {
  const auto parameters = parameters_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].tensor, std::make_unique<ReadyHook>(*exchange_, i));
  }
}

void Engine::remove_hooks() {
  for (auto& parameter : parameters_->parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    // The gradients live in the communicator's memory, which goes with this engine; the model may outlive it.
    parameter.tensor.mutable_grad() = at::Tensor();
  }
}

void Engine::announce(bool has_batch, bool stop, const std::optional<profile::TraceWindow>& trace) {
  if (options_.alone) {
    last_round_ = {has_batch ? 1 : 0, stop};
    stop_seen_ |= stop;
    if (has_batch) ++own_batches_;
    return;
  }
  auto& announcement = announcements_.emplace_back();
  announcement.values[0] = has_batch ? 1 : 0;
  announcement.values[1] = stop ? 1 : 0;
  took_part_ |= has_batch;
  announcement.values[2] = took_part_ ? 1 : 0;
  announcement.values[3] = trace ? trace->first_batch : 0;
  announcement.values[4] = trace ? trace->last_batch : 0;
  announcement.work = communicator_.all_reduce(announcement.values, 5, comm::DataType::kInt64);
  ++rounds_;
  if (has_batch) ++own_batches_;
}

void Engine::settle_announcements(std::size_t keep) {
  if (announcements_.size() <= keep) return;
  const PhaseScope phase(recorder_, Phase::kAllreduceWait);
  while (announcements_.size() > keep) {
    auto& announcement = announcements_.front();
    announcement.work.wait();
    log_.record("all_reduce", -1, announcement.work);
    last_round_ = {announcement.values[0], announcement.values[1] > 0};
    window_batches_ += last_round_.active;
    stop_seen_ |= last_round_.stop;
    took_part_ranks_ = announcement.values[2];
    if (announcement.values[3] > 0) trace_window_ = {announcement.values[3], announcement.values[4]};
    if (last_round_.stop && !stop_round_) {
      stop_round_ = rounds_ - static_cast<std::int64_t>(announcements_.size()) + 1;
    }
    announcements_.pop_front();
  }
}

Engine::Round Engine::agree() {
  settle_announcements();
  return last_round_;
}

void Engine::begin_batch() {
  in_batch_ = true;
  ++batches_;
  batch_began_ = session_.clock().monotonic();
  exchange_->begin_batch(exchange_due() && !local_ && !options_.alone);
}

void Engine::backward(const at::Tensor& loss) {
  if (!in_batch_) throw Error("context.backward() was called outside train_batch()");
  const PhaseScope phase(recorder_, Phase::kBackward);
  exchange_->backward(loss);
}

bool Engine::end_batch() {
  in_batch_ = false;
  const bool stepping = exchange_due();
  if (!stepping) {
    ++rounds_in_window_;
    window_time_ += session_.clock().monotonic() - batch_began_;
  } else if (local_ || options_.alone) {
    step_alone(options_.aggregation_frequency);
  } else {
    exchange_and_step(options_.aggregation_frequency);
    if (trial_ && !fusion_->settling()) try_strategies();
    window_time_ = Nanoseconds{0};
  }
  if (local_) end_local_round(stepping);
  return stepping;
}

bool Engine::flush() {
  settle_announcements();
  if (local_ || options_.alone) {
    const bool left = rounds_in_window_ > 0;
    if (left) step_alone(rounds_in_window_);
    synchronise();
    return left;
  }
  if (rounds_in_window_ == 0 || window_batches_ == 0) return false;
  const int rounds = rounds_in_window_;
  exchange_->begin_batch(/*exchange=*/true);
  exchange_and_step(rounds);
  return true;
}

void Engine::exchange_and_step(int rounds) {
  const auto used = exchange_->finish();
  settle_announcements();
  // The strategy divided by a full window; a window with fewer batches is brought to the mean of those it had.
  const double full = static_cast<double>(options_.aggregation_frequency) * communicator_.world_size();
  double correction = full / static_cast<double>(window_batches_);
  if (!options_.average_aggregated_gradients)
    correction *= static_cast<double>(rounds) / options_.aggregation_frequency;
  strategy_->update({used, correction, options_.max_gradient_norm});
  {
    const PhaseScope phase(recorder_, Phase::kStepLrSchedulers);
    optimizer_->advance_schedule();
  }
  exchange_->end_window();
  rounds_in_window_ = 0;
  window_batches_ = 0;
  adapt_fusion();
}

void Engine::adapt_fusion() {
  if (!fusion_->end_step(*exchange_)) return;
  strategy_->set_plan(fusion_->plan());
  exchange_->use(*strategy_, fusion_->plan());
}

// One inner step, on what this rank alone has seen.
void Engine::step_alone(int rounds) {
  const auto used = exchange_->finish_alone();
  double correction = 1;
  if (own_batches_ > 0) {
    const double counted = options_.average_aggregated_gradients ? 1 : rounds;
    correction = counted / static_cast<double>(own_batches_);
  }
  strategy_->update({used, correction, options_.max_gradient_norm});
  {
    const PhaseScope phase(recorder_, Phase::kStepLrSchedulers);
    optimizer_->advance_schedule();
  }
  exchange_->end_window();
  rounds_in_window_ = 0;
  own_batches_ = 0;
  ++inner_steps_;
}

std::int64_t Engine::local_lag() const {
  // Nobody waits for the others' word on a round until it is long said: a quarter of the way between two meetings, but
  // 16 rounds at most. So a wish to stop is acted upon that much later, by all ranks in the same round.
  const std::int64_t quarter = std::int64_t{options_.local_sgd->inner_steps} * options_.aggregation_frequency / 4;
  return std::clamp<std::int64_t>(quarter, 1, 16);
}

std::int64_t Engine::announcement_rounds() const {
  return local_ ? local_lag() + 1 : options_.aggregation_frequency;
}

void Engine::end_local_round(bool stepped) {
  const std::int64_t lag = local_lag();
  settle_announcements(static_cast<std::size_t>(lag));
  const bool stopping = stop_round_ && rounds_ >= *stop_round_ + lag;
  if (stepped && (inner_steps_ >= options_.local_sgd->inner_steps || stopping)) synchronise();
}

void Engine::synchronise() {
  if (!local_ || inner_steps_ == 0) return;
  settle_announcements();
  if (took_part_ranks_ > 0) local_->meet(took_part_ranks_);
  inner_steps_ = 0;
  // What a window that is still open has gathered goes into a step after this meeting, and counts for the next one.
  took_part_ = own_batches_ > 0;
  took_part_ranks_ = 0;
  window_batches_ = 0;
}

void Engine::report() {
  const bool local = local_ && options_.local_sgd->compression.kind != config::CompressionKind::kNone;
  Json account;
  std::string text;
  bool loses = false;
  if (compressed_ || local) {
    const auto& report = local ? local_->report() : compressed_->report();
    account = report.account(local ? local_->compressor() : compressed_->compressor(), communicator_);
    text = report.sentence(account, loses);
  }
  if (session_.world().rank != 0) return;
  if (local_) session_.update_plan("local_sgd", {{"meetings", local_->meetings()}});
  if (account.is_null()) return;
  account["text"] = text;
  account["loses"] = loses;
  session_.update_plan("compression", account);
  if (loses) {
    session_.log()->warn("{}", text);
  } else {
    session_.log()->info("{}", text);
  }
}

}  // namespace dtrain::train
