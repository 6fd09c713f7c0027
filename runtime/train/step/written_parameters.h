// Parameters that the model itself writes between two updates: which ones any rank has written, and the same values on
// all ranks afterwards. Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/run_services.h"
#include "model/flat_parameters.h"
#include "model/parameter_watch.h"

namespace dtrain::train {

class WrittenParameters {
 public:
  WrittenParameters(const RunServices& run, FlatParameters& parameters, const ParameterWatch& watch)
      : run_(run), parameters_(parameters), watch_(watch) {}

  // What this rank's model has written since the watch last looked: 0 or 1 for each parameter; empty: nothing, or no
  // other rank is concerned.
  std::vector<std::uint8_t> mine() const;
  // Every rank gives its mine(), of which one at least is not empty: the indices of what any rank has written, in
  // order. Collective.
  std::vector<std::size_t> agree(std::vector<std::uint8_t> mine) const;
  // Gives all ranks rank 0's values of these parameters, where they differ. Collective.
  void make_alike(std::span<const std::size_t> parameters);

 private:
  const RunServices& run_;
  FlatParameters& parameters_;
  const ParameterWatch& watch_;
  bool warned_ = false;
};

}  // namespace dtrain::train
