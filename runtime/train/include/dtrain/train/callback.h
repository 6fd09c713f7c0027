// Code of a trial's own that training calls at certain moments: TrialContext::add_callback().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <variant>

#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"
#include "dtrain/train/trial_state.h"

namespace dtrain {

// Override what you need. Each function is called on every rank, by the training thread, unless it says otherwise; all
// callbacks in the order in which they were added. Their time is the phase `callbacks` of the profile. An exception
// ends the run with an error that names the callback, the function and the batch. Each call finds libtorch's random
// numbers seeded by the number of the batch. In a mock run there are no calls.
class Callback {
 public:
  virtual ~Callback() = default;

  // Returns the name in errors: by default the class's. Empty: the callback's errors are passed on as they are.
  virtual std::string name() const;

  // The progress of the training.
  struct Position {
    std::int64_t batch = 0;  // the last batch that was trained; in before_batch() the next one
    std::int64_t epoch = 0;  // from 0
  };

  // Called before the first batch of this process. A run that goes on has restored its state by then.
  virtual void on_training_start(const Position&) {}
  // Called around each batch of this rank. A rank whose data has ended makes no calls. The batch is on the device
  // already; `metrics` is the result of train_batch(). Neither function may wait for a GPU.
  virtual void before_batch(const Position&, const Batch&) {}
  virtual void after_batch(const Position&, const Metrics&) {}
  // Called after the last batch of an epoch, and after the validation and the checkpoint that follow it.
  virtual void on_epoch_end(const Position&) {}
  // Called after each validation, with its metrics: the same on all ranks.
  virtual void on_validation_end(const Position&, const std::map<std::string, double>&) {}
  // Called when a checkpoint is taken, before the state is copied: a change here is part of the checkpoint.
  virtual void on_checkpoint(const Position&) {}
  // Called after the last batch, when the last checkpoint has been taken; also in a run that was asked to stop.
  virtual void on_training_end(const Position&) {}

  // The state that the callback keeps from batch to batch, as Trial::save_state() and load_state().
  virtual TrialState save_state() { return {}; }
  virtual void load_state(const TrialState& state) { static_cast<void>(state); }

  // A call of one of the functions of kCallbackEvents.
  struct Event {
    const char* function;
    Position position;
    // The argument besides the position.
    std::variant<std::monostate, const Batch*, const Metrics*, const std::map<std::string, double>*> given;
    std::function<void(Callback&)> call;
  };
  // Calls the event's function. A callback in another language overrides this one instead of each function.
  virtual void receive(const Event& event) { event.call(*this); }
};

template <auto function>
struct CallbackEvent {
  const char* name;
  std::int64_t ahead = 0;  // Position::batch, less the batches that are done
};

// The functions that training calls, with their names in errors and in Python.
inline constexpr std::tuple kCallbackEvents{
    CallbackEvent<&Callback::on_training_start>{"on_training_start"},
    CallbackEvent<&Callback::before_batch>{"before_batch", 1},
    CallbackEvent<&Callback::after_batch>{"after_batch"},
    CallbackEvent<&Callback::on_epoch_end>{"on_epoch_end"},
    CallbackEvent<&Callback::on_validation_end>{"on_validation_end"},
    CallbackEvent<&Callback::on_checkpoint>{"on_checkpoint"},
    CallbackEvent<&Callback::on_training_end>{"on_training_end"},
};

}  // namespace dtrain
