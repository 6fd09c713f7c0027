// Local steps: every rank trains by itself for a while, then the ranks meet, and an outer optimizer moves all of them
// from their last meeting point by the mean of their distances from it (the outer gradient). Douillard et al., "DiLoCo:
// Distributed Low-Communication Training of Language Models", arXiv:2311.08105; the outer step is Nesterov's as in
// torch.optim.SGD. With one inner step, an outer rate of 1 and no momentum it is plain data parallelism with SGD.
//
// The inner optimizer's state stays each rank's own. Training thread only; everything here is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compression/bucket_compressor.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "exchange/updater.h"
#include "model/flat_parameters.h"
#include "run_services.h"

namespace dtrain::train {

class LocalSteps {
 public:
  // The parameters are the same on all ranks now. `plan`: the buckets of the exchange.
  LocalSteps(const config::LocalSgd& options, FlatParameters& parameters, const comm::FusionPlan& plan,
             comm::Communicator& communicator, profile::Recorder& recorder, std::uint64_t seed);

  // Makes the ranks meet; `active` of them (1 or more) have stepped since the last meeting. Parameters are then the
  // same everywhere.
  void meet(std::int64_t active);
  void visit(StateVisitor& visitor);
  // Writes the number of meetings, and the effect of compression, to plan.json and the log. Collective.
  void report(const RunServices& run) const;

 private:
  struct Group {
    FlatMemory::Block difference;  // start - values, then its mean over ranks
    at::Tensor start;              // the values at the ranks' last meeting
    at::Tensor momentum;           // undefined: none
  };
  void exchange(double scale);

  const config::LocalSgd options_;
  FlatParameters& parameters_;
  const comm::FusionPlan& plan_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  std::vector<Group> groups_;
  std::unique_ptr<BucketCompressor> compressor_;
  std::int64_t meetings_ = 0;
};

// A rank's own gradients update its own parameters: between two meetings of local steps, and in `--mock comm` to the
// end. Nothing here is collective.
class LocalUpdate final : public GradientStrategy {
 public:
  // The parameters that it updates: all, or those that would be this rank's part if updates were sharded.
  enum class Parts { kAll, kOfThisRank };
  LocalUpdate(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
              profile::Recorder& recorder, Parts parts);

  std::string_view operation() const override { return "none"; }
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;  // throws Error: nothing is exchanged
  std::optional<at::Tensor> update(const Update& update) override;

 private:
  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  const Parts parts_;
  Updater updater_;
};

}  // namespace dtrain::train
