// Trains with a script that has its own loop: `for batch in loader: …; loss.backward(); optimizer.step()`. The script
// defines the batches: a batch is a backward() of the model and the step after it, independent of the loader's batches.
// Training thread.
//
// The states, and the calls that lead to the next state:
//   kSettingUp  the script wraps model and optimizer in context(); begin()
//   kReady      between two batches; open_batch(), which the loader or the model's forward calls
//   kForward    a batch is open; backward(), or open_batch() of another batch
//   kBackward   the batch has gradients; update(), drop_gradients(), or another backward(), which adds to them
//   kUpdated    the optimizer has stepped, and the script may step its schedulers; end_batch(), which may save
//   kEnded      the run was stopped, has failed, or is over: exit_code()
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"
#include "loop/rank_training.h"
#include "python_error.h"
#include "values.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

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

class ScriptLoop {
 public:
  enum class State { kSettingUp, kReady, kForward, kBackward, kUpdated, kEnded };

  // Starts the rank. `arguments`: those of a rank program (program name, experiment file, options). Collective.
  explicit ScriptLoop(std::vector<std::string> arguments)
      : arguments_(std::move(arguments)), training_(std::make_unique<train::RankTraining>()) {
    std::vector<char*> argv;
    for (std::string& argument : arguments_) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (!training_->open(static_cast<int>(arguments_.size()), argv.data())) state_ = State::kEnded;
    if (state_ != State::kEnded) show_python_stacks();
  }

  // A run that has not ended is abandoned with its process, as in a program that exits, for the order in which Python
  // destroys its modules is undefined.
  ~ScriptLoop() {
    if (state_ != State::kEnded) static_cast<void>(training_.release());
  }

  State state() const { return state_; }
  // Error once the run has ended.
  TrialContext& context() {
    if (state_ == State::kEnded)
      throw Error("the run has ended", "its summary, or the error before this one, says why");
    return training_->context();
  }
  int exit_code() const { return training_->exit_code(); }

  // Sets training up. `batches_per_epoch`: of this rank; empty: not known.
  void begin(std::optional<std::int64_t> batches_per_epoch) {
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

  // The current epoch, and the number of its batches that were done before this process began.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t skipped_batches() const { return skipped_; }
  // Number of batches trained since the start of the run.
  std::int64_t batches() const { return batches_; }

  // Called before the loader reads batch `number` of its pass, from 0. Ends the last batch and seeds random numbers.
  void expect_batch(std::int64_t number) {
    end_batch();
    if (state_ != State::kEnded) loop().expect_batch(number);
  }

  // Opens a batch for a forward pass with this number of samples of this rank. `place`: that of Batch. If gradients
  // wait for a step, the pass is another part of their batch.
  void open_batch(std::int64_t samples, std::int64_t place) {
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

  // True if a backward() of this loss makes gradients of the model's parameters. Searches the graph for a leaf of the
  // model; usually the first leaf is one. A function in Python may compute gradients of parameters that the graph does
  // not have (checkpointing within backward), so it counts as reaching the model.
  bool reaches_model(const at::Tensor& loss) const {
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

  // Computes the model's gradients, and exchanges them unless more follow. `loss` is also the metric "loss"; its
  // gradient counts `share` times.
  void backward(const at::Tensor& loss, double share, const BackwardOptions& options) {
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

  // Drops gradients without a step, like zero_grad(). Collective if there are gradients.
  void drop_gradients() {
    zeroed_ = true;
    dropped_at_.reset();
    if (state_ == State::kBackward) drop();
  }

  // Makes the optimizer's step. Collective.
  void update() {
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
        "optimizer.step() was called again without a backward() of the model, and torch.optim would apply the "
        "gradients of the step before once more",
        "call it once after each backward(), or zero_grad() before it");
  }

  // Ends a batch after its update, and leaves an open batch without gradients. Other functions call it when needed.
  // Collective.
  void end_batch() {
    leave_open_batch();
    if (state_ != State::kUpdated) return;
    run([&] {
      state_ = State::kReady;
      follow(loop().end_batch());
    });
  }

  // Called when the epoch's data has ended. Returns when the data of all ranks has ended. Collective.
  void end_epoch() {
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

  // Called when the script ends. Writes the weights and ends the run. Returns the exit code. Collective.
  int finish() {
    if (state_ != State::kEnded) {
      is_over_ = true;
      end_epoch();
    }
    return exit_code();
  }

  // Ends the run with the error of a failed script. Returns the exit code.
  int fail(const std::string& error) {
    if (state_ != State::kEnded) {
      run([&] { throw Error(error); });
    }
    return exit_code();
  }

  // Sets a function that is called after each update by the engine.
  void after_update(std::function<void()> hook) { after_update_ = std::move(hook); }

  // Sets the functions that make the script's state for a checkpoint and restore it when a run continues.
  void keep_state(std::function<TrialState()> save, std::function<void(const TrialState&)> load) {
    save_ = std::move(save);
    load_ = std::move(load);
  }

 private:
  // A source without batches, because the script has its own.
  class Source final : public BatchSource {
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

  class Script final : public Trial {
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

  // Calls a function; an exception ends the run.
  template <typename Call>
  void run(const Call& call) {
    try {
      call();
    } catch (...) {
      state_ = State::kEnded;
      training_->fail();
    }
  }

  void follow(train::TrainingLoop::Outcome outcome) {
    if (outcome == train::TrainingLoop::Outcome::kGoOn) return;
    training_->finish(outcome);
    state_ = State::kEnded;
  }

  void open() {
    loop().open_batch(opened_++);
    loss_ = at::Tensor();
    more_samples_ = 0;
    state_ = State::kForward;
  }

  void leave_open_batch() {
    if (state_ != State::kForward) return;
    loop().leave_batch();
    state_ = State::kReady;
  }

  void drop() {
    run([&] {
      loop().drop_batch();
      state_ = State::kReady;
    });
  }

  train::TrainingLoop& loop() { return training_->loop(); }

  std::vector<std::string> arguments_;
  std::unique_ptr<train::RankTraining> training_;
  State state_ = State::kSettingUp;
  std::optional<std::int64_t> batches_per_epoch_;
  std::int64_t epoch_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t batches_ = 0;
  std::int64_t opened_ = 0;   // batches since the last update
  std::int64_t samples_ = 0;  // of the open batch
  std::int64_t place_ = -1;
  std::int64_t more_samples_ = 0;          // of a part for which backward() has not been called
  bool is_over_ = false;                   // finish() has been called
  bool zeroed_ = true;                     // no update yet, or drop_gradients() called since
  std::optional<std::string> dropped_at_;  // batch whose dropped gradients are not zeroed
  at::Tensor loss_;
  std::unordered_set<const at::TensorImpl*> parameters_;
  std::function<void()> after_update_;
  std::function<TrialState()> save_;
  std::function<void(const TrialState&)> load_;
};

}  // namespace

void add_script_loop(py::module_& module) {
  py::class_<ScriptLoop> loop(module, "ScriptLoop");
  py::enum_<ScriptLoop::State>(loop, "State")
      .value("SETTING_UP", ScriptLoop::State::kSettingUp)
      .value("READY", ScriptLoop::State::kReady)
      .value("FORWARD", ScriptLoop::State::kForward)
      .value("BACKWARD", ScriptLoop::State::kBackward)
      .value("UPDATED", ScriptLoop::State::kUpdated)
      .value("ENDED", ScriptLoop::State::kEnded);
  loop.def(py::init<std::vector<std::string>>(), Unlocked())
      .def_property_readonly("state", &ScriptLoop::state)
      .def_property_readonly("context", &ScriptLoop::context, py::return_value_policy::reference)
      .def_property_readonly("exit_code", &ScriptLoop::exit_code)
      .def_property_readonly("batches", &ScriptLoop::batches)
      .def_property_readonly("epoch", &ScriptLoop::epoch)
      .def_property_readonly("skipped_batches", &ScriptLoop::skipped_batches)
      .def("begin", &ScriptLoop::begin, Unlocked())
      .def("expect_batch", &ScriptLoop::expect_batch, Unlocked())
      .def("open_batch", &ScriptLoop::open_batch, Unlocked())
      .def("reaches_model", &ScriptLoop::reaches_model)
      .def(
          "backward",
          [](ScriptLoop& self, const at::Tensor& loss, double share, bool more_follows, bool retain_graph) {
            self.backward(loss, share, {.more_follows = more_follows, .retain_graph = retain_graph});
          },
          Unlocked())
      .def("drop_gradients", &ScriptLoop::drop_gradients, Unlocked())
      .def("update", &ScriptLoop::update, Unlocked())
      .def("end_batch", &ScriptLoop::end_batch, Unlocked())
      .def("end_epoch", &ScriptLoop::end_epoch, Unlocked())
      .def("finish", &ScriptLoop::finish, Unlocked())
      .def("fail", &ScriptLoop::fail, Unlocked())
      .def("after_update",
           [](ScriptLoop& self, py::object hook) {
             const py::handle call = hook.release();  // Python's modules live as long as the process
             self.after_update(
                 [call] { call_python("the optimizer", [&] { py::reinterpret_borrow<py::object>(call)(); }); });
           })
      .def("keep_state", [](ScriptLoop& self, py::object save, py::object load) {
        // Python's modules live as long as the process.
        const py::handle save_from = save.release();
        const py::handle load_into = load.release();
        self.keep_state(
            [save_from] {
              return call_python("saving the script's state",
                                 [&] { return state_from(py::reinterpret_borrow<py::object>(save_from)()); });
            },
            [load_into](const TrialState& state) {
              call_python("restoring the script's state",
                          [&] { py::reinterpret_borrow<py::object>(load_into)(state_to_python(state)); });
            });
      });
}

}  // namespace dtrain::python
