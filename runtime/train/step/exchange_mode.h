// The usual mode: the ranks exchange the gradients of every window, and all have the same parameters after each step.
// Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exchange/strategy_picker.h"
#include "step/step_mode.h"

namespace dtrain::train {

// Finds the parameters that the model itself writes between two updates, on any rank, and makes their values the same
// on all ranks afterwards.
class WrittenParameters {
 public:
  WrittenParameters(const RunServices& run, FlatParameters& parameters, const ParameterWatch& watch)
      : run_(run), parameters_(parameters), watch_(watch) {}

  // Returns 0 or 1 for each parameter: 1 if this rank's model has written it since the watch last looked. Empty: the
  // model has written none, or the writes concern no other rank.
  std::vector<std::uint8_t> mine() const;
  // Takes every rank's mine(), of which at least one is not empty. Returns the indices of the parameters that any rank
  // has written, in order. Collective.
  std::vector<std::size_t> agree(std::vector<std::uint8_t> mine) const;
  // Gives all ranks rank 0's values of these parameters, where they differ. Collective.
  void make_alike(std::span<const std::size_t> parameters);

 private:
  const RunServices& run_;
  FlatParameters& parameters_;
  const ParameterWatch& watch_;
  bool warned_ = false;
};

// `parts` and `more` outlive the mode. Collective.
std::unique_ptr<StepMode> make_exchange_mode(const StepParts& parts, const ExchangeParts& more,
                                             const StrategyOptions& options);

}  // namespace dtrain::train
