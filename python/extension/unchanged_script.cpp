// Records a script that does not call dtrain: its steps, as the hooks of python/dtrain/step_hooks.py find them, and the
// collectives of its process groups. The script keeps its loop, its model and its optimizer.
//
// Called by the script's thread, with the GIL, in each step: quick, and never waiting.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "bindings.h"
#include "dtrain/base/error.h"
#include "dtrain/base/numeric.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/rank/rank_session.h"
#include "loop/rank_training.h"
#include "values.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;
using profile::Phase;

class UnchangedScript {
 public:
  // Starts the rank. `arguments`: those of a rank program (program name, experiment file, options). Collective.
  explicit UnchangedScript(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
    std::vector<char*> argv;
    for (std::string& argument : arguments_) argv.push_back(argument.data());
    argv.push_back(nullptr);
    session_ = train::start_session(static_cast<int>(arguments_.size()), argv.data(), /*for_model=*/false, exit_code_);
    if (!session_) return;
    train::use_fast_operators(*session_);
    if (is_first_rank()) session_->begin_events(0);
  }

  // A run that has not ended is abandoned with its process, as in a program that exits.
  ~UnchangedScript() { static_cast<void>(session_.release()); }

  bool is_open() const { return session_ != nullptr; }
  int exit_code() const { return exit_code_; }
  const comm::World& world() const { return session_->world(); }
  std::string address() const { return session_->address(); }
  bool exchanges() const { return session_->experiment().as_is == config::AsIs::kExchange; }

  // Gives a value of rank 0 to all ranks. Collective.
  std::string from_rank_0(const std::string& key, const std::string& value) {
    if (is_first_rank()) session_->control().set("as-is/" + key, value);
    return session_->control().get("as-is/" + key);
  }

  // A step begins, in `phase`. One that is open and has not ended was none: a batch of an evaluation.
  void begin_step(Phase phase) {
    if (steps_ == 0 && !has_begun_) session_->recorder().mark(profile::RunMark::kInitializationEnd);
    has_begun_ = true;
    session_->set_step(steps_ + 1);
    session_->recorder().begin_step(steps_ + 1);
    session_->recorder().switch_to(phase);
  }

  // Returns the phase before.
  Phase switch_to(Phase phase) { return session_->recorder().switch_to(phase); }

  // The open step ends. `samples`: of this rank; `loss`: of this rank, where it is known without waiting for a device.
  void end_step(std::int64_t samples, std::optional<double> loss, double learning_rate) {
    ++steps_;
    samples_ += samples;
    if (steps_ == 1 && samples > 0 && is_first_rank()) session_->use_global_batch_size(samples * world().size);
    learning_rate_ = learning_rate;
    if (loss) {
      losses_ += *loss;
      ++losses_counted_;
    }
    if (is_first_rank()) {
      if (steps_ % session_->experiment().scheduling_unit == 0) write_metrics();
      report_progress(loss);
    }
    session_->recorder().end_step({{samples}, /*exchanged=*/1, /*epoch=*/0});
  }

  std::int64_t steps() const { return steps_; }
  // Why the script has to end: "SIGTERM"; empty: it does not.
  std::string stop_reason() const { return session_->stop_requested() ? session_->stop_reason() : ""; }

  void update_plan(const std::string& key, const py::dict& value) {
    if (is_first_rank()) session_->update_plan(key, json_from(value));
  }
  void info(const std::string& text) { session_->log()->info("{}", text); }
  void warn(const std::string& text) { session_->log()->warn("{}", text); }

  // Ends the run of a script that has ended well. Returns the exit code. Collective.
  int finish() {
    session_->recorder().mark(profile::RunMark::kLoopEnd);
    if (is_first_rank()) write_metrics();
    exit_code_ = session_->finish(/*stopped=*/false, /*saved=*/false);
    session_.reset();
    return exit_code_;
  }

  // Ends the run of a script that has failed. Returns the exit code.
  int fail(const std::string& error) {
    exit_code_ = session_->fail(Error(error));
    session_.reset();
    return exit_code_;
  }

 private:
  bool is_first_rank() const { return world().rank == 0; }

  void write_metrics() {
    if (losses_counted_ == 0) return;
    session_->write_metrics({{"kind", "training"},
                             {"batch", steps_},
                             {"epoch", 0},
                             {"samples", std::exchange(samples_, 0)},
                             {"optimizer_steps", steps_},
                             {"learning_rate", number_or_text(learning_rate_)},
                             {"metrics", {{"loss_of_rank_0", number_or_text(losses_ / losses_counted_)}}}});
    losses_ = 0;
    losses_counted_ = 0;
  }

  void report_progress(std::optional<double> loss) {
    rank::Progress progress;
    progress.batch = steps_;
    progress.loss = loss;
    session_->report_progress(progress);
  }

  std::vector<std::string> arguments_;
  std::unique_ptr<rank::RankSession> session_;
  int exit_code_ = 0;
  bool has_begun_ = false;
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;  // of this rank since the last line of metrics
  double learning_rate_ = 0;
  double losses_ = 0;
  std::int64_t losses_counted_ = 0;
};

}  // namespace

void add_unchanged_script(py::module_& module) {
  py::class_<UnchangedScript> script(module, "UnchangedScript");
  py::enum_<Phase>(script, "Phase")
      .value("LOADER", Phase::kDataloaderNext)
      .value("FORWARD", Phase::kForward)
      .value("BACKWARD", Phase::kBackward)
      .value("EXCHANGE", Phase::kAllreduceWait)
      .value("UPDATE", Phase::kOptimizerStep)
      .value("OTHER", Phase::kOther);
  script.def(py::init<std::vector<std::string>>(), Unlocked())
      .def_property_readonly("is_open", &UnchangedScript::is_open)
      .def_property_readonly("exit_code", &UnchangedScript::exit_code)
      .def_property_readonly("exchanges", &UnchangedScript::exchanges)
      .def_property_readonly("address", &UnchangedScript::address)
      .def_property_readonly("rank", [](const UnchangedScript& of) { return of.world().rank; })
      .def_property_readonly("world_size", [](const UnchangedScript& of) { return of.world().size; })
      .def_property_readonly("local_rank", [](const UnchangedScript& of) { return of.world().local_rank; })
      .def_property_readonly("local_size", [](const UnchangedScript& of) { return of.world().local_size; })
      .def("from_rank_0", &UnchangedScript::from_rank_0, Unlocked())
      .def("begin_step", &UnchangedScript::begin_step)
      .def("switch_to", &UnchangedScript::switch_to)
      .def("end_step", &UnchangedScript::end_step)
      .def_property_readonly("steps", &UnchangedScript::steps)
      .def_property_readonly("stop_reason", &UnchangedScript::stop_reason)
      .def("update_plan", &UnchangedScript::update_plan)
      .def("info", &UnchangedScript::info)
      .def("warn", &UnchangedScript::warn)
      .def("finish", &UnchangedScript::finish, Unlocked())
      .def("fail", &UnchangedScript::fail, Unlocked());
}

}  // namespace dtrain::python
