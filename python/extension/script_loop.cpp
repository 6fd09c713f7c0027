#include "script_loop.h"

#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/run_trial.h"

namespace dtrain::python {
namespace {

// A run that begins with the training state of another one goes on after its batches. For trials the engine checks it,
// which knows their length.
void require_greater_length(TrialContext& context, std::int64_t batches,
                            std::optional<std::int64_t> batches_per_epoch) {
  const run::RankSession& session = context.session();
  const config::Experiment& experiment = session.experiment();
  if (!experiment.initial_weights.training_state || !session.resume_from().empty()) return;
  const config::Length& length = experiment.searcher.max_length;
  if (length.unit == config::LengthUnit::kEpochs && !batches_per_epoch) return;
  const auto wanted = config::in_batches(length, experiment.global_batch_size, batches_per_epoch.value_or(0));
  if (batches < wanted) return;
  throw ConfigError("searcher.max_length is " + std::to_string(wanted) + " batches, and in the checkpoint of " +
                    experiment.initial_weights.file.string() + " " + std::to_string(batches) +
                    " are done; batches are counted on from the checkpoint's: give a greater length");
}

}  // namespace

// Notes how far training has come. Without a name: an error in it is the script's, not a callback's.
class ScriptLoop::Position final : public Callback {
 public:
  explicit Position(ScriptLoop& loop) : loop_(loop) {}
  std::string name() const override { return ""; }
  void on_training_start(const Callback::Position& position) override {
    loop_.batches_ = position.batch;
    if (position.batch > 0) require_greater_length(*loop_.context_, position.batch, loop_.batches_per_epoch_);
  }
  void before_batch(const Callback::Position& position, const Batch&) override { loop_.batches_ = position.batch; }
  void after_batch(const Callback::Position&, const Metrics&) override {
    if (loop_.after_batch_) loop_.after_batch_();
    loop_.wait_in(State::kUpdated);
  }

 private:
  ScriptLoop& loop_;
};

// Has no batches itself: the script has them.
class ScriptLoop::Source final : public BatchSource {
 public:
  explicit Source(ScriptLoop& loop) : loop_(loop) {}
  void start_epoch(std::int64_t epoch) override { start_epoch_at(epoch, 0); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override {
    loop_.epoch_ = epoch;
    loop_.skipped_ = batches;
    loop_.epoch_is_over_ = false;
  }
  std::optional<Batch> next() override {
    loop_.throw_failure();
    // Where other ranks still have batches, the loop asks again.
    if (!loop_.is_over_ && !loop_.epoch_is_over_) loop_.wait_in(State::kWantsBatch);
    if (loop_.is_over_ || loop_.epoch_is_over_) return std::nullopt;
    Batch batch;
    batch.samples = loop_.samples_;
    return batch;
  }
  std::optional<std::int64_t> batches_per_epoch() const override { return loop_.batches_per_epoch_; }
  std::optional<bool> has_next_epoch() const override { return !loop_.is_over_; }

 private:
  ScriptLoop& loop_;
};

class ScriptLoop::Script final : public Trial {
 public:
  Script(ScriptLoop& loop, TrialContext& context) : loop_(loop) {
    loop_.context_ = &context;
    context.add_callback(std::make_shared<Position>(loop_));
    loop_.wait_in(State::kSettingUp);
  }
  ~Script() override { loop_.context_ = nullptr; }
  Loader training_loader() override { return std::make_shared<Source>(loop_); }
  Loader validation_loader() override { return nullptr; }
  Metrics train_batch(const Batch&) override {
    loop_.loss_ = at::Tensor();
    loop_.wait_in(State::kTraining);
    return {{"loss", std::exchange(loop_.loss_, at::Tensor())}};
  }
  std::string why_not_repeatable() const override { return "the script has a loop of its own"; }
  Metrics evaluate_batch(const Batch&) override { return {}; }
  std::string state_owner() const override { return "a script in Python"; }
  TrialState save_state() override { return loop_.save_ ? loop_.save_() : TrialState(); }
  void load_state(const TrialState& state) override {
    if (loop_.load_) loop_.load_(state);
  }

 private:
  ScriptLoop& loop_;
};

ScriptLoop::ScriptLoop(std::vector<std::string> arguments)
    : arguments_(std::move(arguments)), fiber_([this] {
        std::vector<char*> argv;
        for (std::string& argument : arguments_) argv.push_back(argument.data());
        argv.push_back(nullptr);
        exit_code_ = run_trial(static_cast<int>(arguments_.size()), argv.data(),
                               [this](TrialContext& context) { return std::make_unique<Script>(*this, context); });
        state_ = State::kEnded;
      }) {
  fiber_.resume();
}

TrialContext& ScriptLoop::context() {
  if (!context_) throw Error("the run has ended", "its summary, or the error before this one, says why");
  return *context_;
}

void ScriptLoop::wait_in(State state) {
  state_ = state;
  fiber_.suspend();
  throw_failure();
}

void ScriptLoop::throw_failure() {
  if (failure_) throw Error(*std::exchange(failure_, std::nullopt));
}

void ScriptLoop::go_on() {
  fiber_.resume();
}

void ScriptLoop::begin(std::optional<std::int64_t> batches_per_epoch) {
  if (state_ != State::kSettingUp) throw Error("the session has wrapped a model and a loader before");
  batches_per_epoch_ = batches_per_epoch;
  go_on();
}

void ScriptLoop::give_batch(std::int64_t samples) {
  end_batch();
  if (state_ == State::kEnded) return;
  if (state_ != State::kWantsBatch) throw Error("the loader gives a batch, and the one before has not been trained on");
  samples_ = samples;
  go_on();
}

void ScriptLoop::add_to_batch(std::int64_t samples) {
  if (state_ != State::kTraining) throw Error("the loader adds to a batch, and none is under way");
  context().around_the_loop().added_samples += samples;
}

void ScriptLoop::backward(const at::Tensor& loss, double share, const BackwardOptions& options) {
  if (state_ != State::kTraining) {
    throw Error("loss.backward() was called for a batch that did not come from the wrapped loader",
                "take batches from the loader that session.wrap() has returned");
  }
  const auto& backward = context().wrapped().backward;
  if (!backward) throw Error("loss.backward() was called outside a batch");
  backward(share == 1 ? loss : loss * share, options);
  if (loss.numel() == 1) loss_ = loss_.defined() ? loss_ + loss.detach() : loss.detach();
}

void ScriptLoop::end_step() {
  if (state_ != State::kTraining) {
    throw Error("optimizer.step() was called a second time for a batch, or before one came from the wrapped loader");
  }
  go_on();
}

void ScriptLoop::end_batch() {
  if (state_ == State::kUpdated) go_on();
}

void ScriptLoop::end_epoch() {
  end_batch();
  if (state_ == State::kEnded) return;
  epoch_is_over_ = true;
  go_on();
}

int ScriptLoop::finish() {
  end_batch();
  if (state_ == State::kWantsBatch) {
    is_over_ = true;
    go_on();
  }
  return exit_code_;
}

int ScriptLoop::fail(const std::string& error) {
  if (state_ != State::kEnded) {
    failure_ = error;
    go_on();
  }
  return exit_code_;
}

void ScriptLoop::keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load) {
  save_ = std::move(save);
  load_ = std::move(load);
}

}  // namespace dtrain::python
