#include "script_loop.h"

#include <string_view>
#include <typeinfo>
#include <utility>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::python {
namespace {

// A run that begins with the training state of another run continues after that run's batches. For trials the engine,
// which knows their length, makes this check.
void require_greater_length(TrialContext& context, std::int64_t batches,
                            std::optional<std::int64_t> batches_per_epoch) {
  const rank::RankSession& session = context.session();
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

// True for a torch.autograd.Function, whose class libtorch does not export.
bool is_of_python(const torch::autograd::Node& node) {
  return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE";
}

}  // namespace

// A source without batches, because the script has its own.
class ScriptLoop::Source final : public BatchSource {
 public:
  explicit Source(ScriptLoop& loop) : loop_(loop) {}
  void start_epoch(std::int64_t epoch) override { start_epoch_at(epoch, 0); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override {
    loop_.epoch_ = epoch;
    loop_.skipped_ = batches;
  }
  std::optional<Batch> next() override { return std::nullopt; }
  std::optional<std::int64_t> batches_per_epoch() const override { return loop_.batches_per_epoch_; }
  std::optional<bool> has_next_epoch() const override { return !loop_.is_over_; }

 private:
  ScriptLoop& loop_;
};

class ScriptLoop::Script final : public Trial {
 public:
  explicit Script(ScriptLoop& loop) : loop_(loop) {}
  Loader training_loader() override { return std::make_shared<Source>(loop_); }
  Loader validation_loader() override { return nullptr; }
  Metrics train_batch(const Batch&) override { throw Error("a script trains its batches itself"); }
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
    : arguments_(std::move(arguments)), training_(std::make_unique<train::RankTraining>()) {
  std::vector<char*> argv;
  for (std::string& argument : arguments_) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (!training_->open(static_cast<int>(arguments_.size()), argv.data())) state_ = State::kEnded;
}

// A run that has not ended is abandoned with its process, as in a program that exits, for the order in which Python
// destroys its modules is undefined.
ScriptLoop::~ScriptLoop() {
  if (state_ != State::kEnded) static_cast<void>(training_.release());
}

TrialContext& ScriptLoop::context() {
  if (state_ == State::kEnded) throw Error("the run has ended", "its summary, or the error before this one, says why");
  return training_->context();
}

template <typename Call>
void ScriptLoop::run(const Call& call) {
  try {
    call();
  } catch (...) {
    state_ = State::kEnded;
    training_->fail();
  }
}

void ScriptLoop::begin(std::optional<std::int64_t> batches_per_epoch) {
  if (state_ != State::kSettingUp) throw Error("the session has wrapped a model and a loader before");
  batches_per_epoch_ = batches_per_epoch;
  run([&] {
    training_->prepare(std::make_unique<Script>(*this));
    for (const at::Tensor& parameter : context().wrapped().model->parameters()) {
      parameters_.insert(parameter.unsafeGetTensorImpl());
    }
    const auto outcome = loop().begin();
    batches_ = loop().position().batches;
    if (batches_ > 0) require_greater_length(context(), batches_, batches_per_epoch_);
    state_ = State::kReady;
    follow(outcome);
  });
}

void ScriptLoop::follow(train::TrainingLoop::Outcome outcome) {
  if (outcome != train::TrainingLoop::Outcome::kGoOn) end(outcome);
}

void ScriptLoop::end(train::TrainingLoop::Outcome outcome) {
  training_->finish(outcome);
  state_ = State::kEnded;
}

void ScriptLoop::leave_open_batch() {
  if (state_ != State::kForward) return;
  loop().leave_batch();
  state_ = State::kReady;
}

void ScriptLoop::expect_batch(std::int64_t number) {
  end_batch();
  if (state_ != State::kEnded) loop().expect_batch(number);
}

void ScriptLoop::open_batch(std::int64_t samples, std::int64_t place) {
  end_batch();
  if (state_ == State::kEnded) return;
  if (state_ == State::kSettingUp) throw Error("a batch comes before session.wrap()");
  if (state_ == State::kBackward) {
    more_samples_ = samples;
    loop().continue_batch();
    return;
  }
  samples_ = samples;
  place_ = place;
  open();
}

void ScriptLoop::open() {
  loop().open_batch(opened_++);
  loss_ = at::Tensor();
  more_samples_ = 0;
  state_ = State::kForward;
}

// Searches the graph for a leaf of the model; usually the first leaf is one. A function in Python may compute gradients
// of parameters that the graph does not have (checkpointing within backward), so it counts as reaching the model.
bool ScriptLoop::reaches_model(const at::Tensor& loss) const {
  if (parameters_.contains(loss.unsafeGetTensorImpl())) return true;
  std::vector<torch::autograd::Node*> open{loss.grad_fn().get()};
  std::unordered_set<const torch::autograd::Node*> seen;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (parameters_.contains(leaf->variable.unsafeGetTensorImpl())) return true;
      continue;
    }
    if (is_of_python(*node)) return true;
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return false;
}

void ScriptLoop::backward(const at::Tensor& loss, double share, const BackwardOptions& options) {
  if (dropped_at_) {
    throw Error(
        "the gradients of " + *dropped_at_ + " have been dropped: no optimizer.step() came after their backward()",
        "call optimizer.step() for the last batches of an epoch, too, or zero_grad() before the next backward()");
  }
  end_batch();
  if (state_ == State::kEnded) return;
  if (state_ == State::kReady) open();
  if (more_samples_ > 0) loop().add_samples(std::exchange(more_samples_, 0));
  state_ = State::kBackward;
  loop().backward(share == 1 ? loss : loss * share, options, samples_, place_);
  if (loss.numel() == 1) loss_ = loss_.defined() ? loss_ + loss.detach() : loss.detach();
}

void ScriptLoop::drop() {
  run([&] {
    loop().drop_batch();
    state_ = State::kReady;
  });
}

void ScriptLoop::drop_gradients() {
  zeroed_ = true;
  dropped_at_.reset();
  if (state_ == State::kBackward) drop();
}

void ScriptLoop::update() {
  if (state_ == State::kEnded) return;
  if (state_ == State::kBackward) {
    run([&] {
      loop().update({{"loss", std::exchange(loss_, at::Tensor())}});
      if (after_update_) after_update_();
      batches_ = loop().position().batches;
      opened_ = 0;
      zeroed_ = false;
      state_ = State::kUpdated;
    });
    return;
  }
  if (zeroed_ && state_ != State::kUpdated) return;  // without gradients torch.optim changes nothing
  throw Error(
      "optimizer.step() was called again without a backward() of the model, and torch.optim would apply the gradients "
      "of the "
      "step before once more",
      "call it once after each backward(), or zero_grad() before it");
}

void ScriptLoop::end_batch() {
  leave_open_batch();
  if (state_ != State::kUpdated) return;
  run([&] {
    state_ = State::kReady;
    follow(loop().end_batch());
  });
}

void ScriptLoop::end_epoch() {
  end_batch();
  if (state_ == State::kBackward) {
    dropped_at_ = "the last batch of epoch " + std::to_string(epoch_);
    drop();
  }
  if (state_ == State::kEnded) return;
  run([&] {
    const std::int64_t epoch = epoch_;
    auto outcome = train::TrainingLoop::Outcome::kGoOn;
    while (outcome == train::TrainingLoop::Outcome::kGoOn && epoch_ == epoch) outcome = loop().run_round();
    follow(outcome);
  });
}

int ScriptLoop::finish() {
  if (state_ != State::kEnded) {
    is_over_ = true;
    end_epoch();
  }
  return exit_code();
}

int ScriptLoop::fail(const std::string& error) {
  if (state_ != State::kEnded) {
    run([&] { throw Error(error); });
  }
  return exit_code();
}

void ScriptLoop::keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load) {
  save_ = std::move(save);
  load_ = std::move(load);
}

}  // namespace dtrain::python
