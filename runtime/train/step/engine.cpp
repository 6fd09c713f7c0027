#include "step/engine.h"

#include <algorithm>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "dtrain/base/error.h"
#include "dtrain/run/agreed_error.h"
#include "step/startup_checks.h"
#include "strategies/alone.h"
#include "strategies/replicated.h"
#include "strategies/strategy_report.h"

namespace dtrain::train {

namespace {

using profile::Phase;
using profile::PhaseScope;

// Tells the exchange that backward has finished a gradient. Autograd calls it on the thread that runs backward, which
// for CPU models is the one that called it.
//
// A tensor has room for one such hook. One that the user has put there runs first, and is put back in the end.
class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Base = torch::autograd::PostAccumulateGradHook;
  ReadyHook(GradientExchange& exchange, std::size_t index, std::unique_ptr<Base> before)
      : exchange_(exchange), index_(index), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    if (before_) (*before_)(parameter);
    exchange_.gradient_ready(index_);
  }
  std::unique_ptr<Base> take_before() { return std::move(before_); }

 private:
  GradientExchange& exchange_;
  std::size_t index_;
  std::unique_ptr<Base> before_;
};

// Writes through .data() leave no trace but the values: those of this many steps are compared.
constexpr std::int64_t kStepsLookedAtCloser = 2;

}  // namespace

Engine::Engine(TrialContext& context, run::RankSession& session, const EngineOptions& options)
    : session_(session),
      options_(options),
      communicator_(session.communicator()),
      recorder_(session.recorder()),
      log_(communicator_, recorder_),
      non_finite_(session, options.stop_on_non_finite),
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
  watch_ = std::make_unique<ParameterWatch>(*model_, *parameters_);
  watch_->note(may_shard());
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
    auto compressed = std::make_unique<Compressed>(
        *parameters_, *optimizer_, communicator_, recorder_, scale, [this] { return window_correction(); },
        options_.compression, options_.seed, Fusion::settled_steps());
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
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(parameters[i].tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].tensor,
                                                   std::make_unique<ReadyHook>(*exchange_, i, std::move(before)));
  }
}

void Engine::remove_hooks() {
  for (auto& parameter : parameters_->parameters()) {
    auto* ours = dynamic_cast<ReadyHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter.tensor).get());
    if (ours) torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, ours->take_before());
    // The gradients live in the communicator's memory, which goes with this engine; the model may outlive it.
    parameter.tensor.mutable_grad() = at::Tensor();
    for (at::Tensor& tied : parameter.tied) tied.mutable_grad() = at::Tensor();
  }
}

void Engine::announce(bool has_batch, bool stop, const std::optional<profile::TraceWindow>& trace) {
  if (options_.alone) {
    last_round_ = {has_batch ? 1 : 0, stop};
    stop_seen_ |= stop;
    if (has_batch) ++own_batches_;
    non_finite_.settle(non_finite_.take_words(), batches_);
    return;
  }
  auto& announcement = announcements_.emplace_back();
  announcement.values[0] = has_batch ? 1 : 0;
  announcement.values[1] = stop ? 1 : 0;
  took_part_ |= has_batch;
  announcement.values[2] = took_part_ ? 1 : 0;
  announcement.values[3] = trace ? trace->first_batch : 0;
  announcement.values[4] = trace ? trace->last_batch : 0;
  const auto words = non_finite_.take_words();
  std::copy(words.begin(), words.end(), announcement.values + 5);
  announcement.batch = batches_;
  announcement.work =
      communicator_.all_reduce(announcement.values, std::size(announcement.values), comm::DataType::kInt64);
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
    non_finite_.settle(std::span(announcement.values).subspan<5>(), announcement.batch);
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
  exchanged_rounds_ = options_.aggregation_frequency;
  exchange_->begin_batch(exchange_due() && !local_ && !options_.alone);
}

void Engine::backward(const at::Tensor& loss) {
  if (!in_batch_) throw Error("context.backward() was called outside train_batch()");
  if (loss.numel() == 1 && loss.is_cpu()) non_finite_.see_loss(loss.item<double>(), batches_);
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
    exchange_and_step();
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
  exchanged_rounds_ = rounds_in_window_;
  exchange_->begin_batch(/*exchange=*/true);
  exchange_and_step();
  return true;
}

double Engine::window_correction() {
  settle_announcements();
  // The strategy divided by a full window; a window with fewer batches is brought to the mean of those it had.
  const double full = static_cast<double>(options_.aggregation_frequency) * communicator_.world_size();
  const double correction = full / static_cast<double>(window_batches_);
  if (options_.average_aggregated_gradients) return correction;
  return correction * static_cast<double>(exchanged_rounds_) / options_.aggregation_frequency;
}

void Engine::exchange_and_step() {
  watch_->check();
  const bool may_differ = communicator_.world_size() > 1;
  std::vector<std::uint8_t> mine;
  if (may_differ && watch_->any_written()) mine = watch_->written();
  const auto used = exchange_->finish(!mine.empty());
  std::vector<std::size_t> written;
  if (may_differ && exchange_->word_of_any()) written = agree_on_written(std::move(mine));
  const auto norm = strategy_->update({used, window_correction(), options_.max_gradient_norm});
  if (norm) non_finite_.see_norm(*norm, batches_);
  {
    const PhaseScope phase(recorder_, Phase::kStepLrSchedulers);
    optimizer_->advance_schedule();
  }
  exchange_->end_window();
  rounds_in_window_ = 0;
  window_batches_ = 0;
  const bool closer = may_shard() && optimizer_->steps() < kStepsLookedAtCloser;
  if (!written.empty()) {
    stop_sharding(parameters_->parameters()[written.front()].name);
    make_alike(written);
  }
  if (!written.empty() || optimizer_->steps() <= kStepsLookedAtCloser) watch_->note(closer);
  adapt_fusion();
}

// Some rank's model has written parameters: which ones. AgreedError where that cannot be.
std::vector<std::size_t> Engine::agree_on_written(std::vector<std::uint8_t> mine) {
  mine.resize(parameters_->parameters().size());
  communicator_.all_reduce(mine.data(), mine.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax}).wait();
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i]) written.push_back(i);
  }
  if (sharded_ && (sharded_->one_copy() || options_.sharded == config::ShardedOptimizer::kOn)) {
    throw run::AgreedError("the model writes its parameter '" + parameters_->parameters()[written.at(0)].name +
                               "' itself, which sharded updates do not allow: ranks share parameters",
                           "set optimizations.sharded_optimizer: false");
  }
  return written;
}

// After an update: each rank has all parameters again, and so it stays.
void Engine::stop_sharding(const std::string& written) {
  if (!sharded_ && !trial_) return;
  trial_.reset();
  if (sharded_) use_strategy(false);
  tell_strategy();
  if (session_.world().rank != 0) return;
  session_.log()->warn(
      "the model writes its parameter '{}' itself: updates stay replicated, as with sharded_optimizer: false", written);
}

// After an update: every rank goes on with rank 0's values of these.
void Engine::make_alike(std::span<const std::size_t> parameters) {
  const auto all = parameters_->parameters();
  std::vector<std::int64_t> extremes;  // the digests and their complements: largest and smallest of all ranks
  for (const std::size_t index : parameters) {
    extremes.push_back(static_cast<std::int64_t>(digest_of(all[index].tensor)));
    extremes.push_back(~extremes.back());
  }
  communicator_.all_reduce(extremes.data(), extremes.size(), comm::DataType::kInt64, {.op = comm::ReduceOp::kMax})
      .wait();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    const auto& parameter = all[parameters[i]];
    communicator_.broadcast(parameter.tensor.data_ptr(), parameter.tensor.nbytes(), comm::DataType::kUint8, 0).wait();
    if (std::exchange(said_different_, true) || session_.world().rank != 0) continue;
    session_.log()->warn(
        "the model writes its parameter '{}' itself, other values on other ranks: rank 0's count, and all ranks have "
        "them "
        "after each optimizer step",
        parameter.name);
  }
}

void Engine::adapt_fusion() {
  if (!fusion_->end_step(*exchange_)) return;
  strategy_->set_plan(fusion_->plan());
  exchange_->use(*strategy_, fusion_->plan());
}

// One inner step, on what this rank alone has seen.
void Engine::step_alone(int rounds) {
  watch_->check();
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
  report_compression();
  report_non_finite();
}

void Engine::report_non_finite() {
  auto words = non_finite_.take_words();
  if (!options_.alone) communicator_.all_reduce(words.data(), words.size(), comm::DataType::kInt64).wait();
  non_finite_.settle(words, batches_);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_->parameters()) {
    if (session_.world().rank != 0 || non_finite_.batches() > 0) break;  // which it follows from
    if (parameter.tensor.sum().isnan().item<bool>()) non_finite_.see_weights(parameter.name, batches_);
  }
  non_finite_.tell();
}

void Engine::report_compression() {
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
