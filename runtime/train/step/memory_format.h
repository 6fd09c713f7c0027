// `optimizations.memory_format`: the order in memory of the weights of convolutions. libtorch computes a convolution in
// the order of its weight. `auto`: both orders take turns in the run's first steps, and the faster one stays. Kernels
// round differently in each order, so the choice is remembered: a repeated run takes the same turns and makes the same
// choice. Training thread; everything but settled() is collective.
#pragma once

#include <cstdint>
#include <optional>

#include "device/steps_in_flight.h"
#include "exchange/autotune.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "state_visitor.h"
#include "step/step_options.h"

namespace dtrain::train {

class MemoryFormat {
 public:
  // The references outlive it.
  MemoryFormat(const RunServices& run, FlatParameters& parameters, StepsInFlight& in_flight,
               const StepOptions& options);

  // True if the order is final.
  bool settled() const { return !comparison_; }
  // Called around each batch. `stepped`: an optimizer step has ended. Returns true if the model's weights have moved.
  void begin_batch();
  bool end_batch(bool stepped, std::int64_t batch);

  void visit(StateVisitor& visitor);

 private:
  Json key() const;
  std::optional<bool> remembered() const;
  void use(bool channels_last);
  void write_choice();

  const RunServices& run_;
  FlatParameters& parameters_;
  StepsInFlight& in_flight_;
  const StepOptions options_;
  const RunCache cache_;
  bool channels_last_ = false;
  std::optional<TurnComparison> comparison_;  // set during the comparison
  std::optional<bool> known_;                 // its result in an earlier run
  Nanoseconds batch_began_{0};
  Nanoseconds window_time_{0};  // of the open window's ended batches, without loading
};

}  // namespace dtrain::train
