// The replicated strategy: every bucket is all-reduced, every rank updates all parameters.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collective_log.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/profile/recorder.h"
#include "flat_parameters.h"
#include "gradient_memory.h"
#include "gradient_strategy.h"

namespace dtrain::train {

class Replicated final : public GradientStrategy {
 public:
  // `scale`: what sums over ranks and batches of a full window are multiplied by.
  Replicated(FlatParameters& parameters, const comm::FusionPlan& plan, comm::Communicator& communicator,
             profile::Recorder& recorder, double scale);

  void begin_batch(bool exchange) override;
  void backward(const at::Tensor& loss) override;
  void gradient_ready(std::size_t parameter) override;
  std::span<const std::uint8_t> finish_exchange() override;
  void end_window() override;

 private:
  struct Bucket {
    std::size_t missing = 0;  // gradients of this batch not ready yet
    bool launched = false;
  };
  void launch_ready();
  void launch(std::size_t bucket);

  FlatParameters& parameters_;
  const comm::FusionPlan& plan_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  GradientMemory memory_;
  double scale_;
  bool exchanging_ = false;
  bool window_open_ = false;
  bool first_in_window_ = false;
  std::vector<std::size_t> bucket_of_;  // of each parameter
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;  // the first not launched: buckets go in plan order
  std::vector<std::uint8_t> ready_in_batch_;
  std::vector<std::uint8_t> used_;  // in this window, on this rank; after the exchange on any rank
  std::vector<std::pair<std::size_t, at::Tensor>> displaced_;  // gradients whose place was taken when they were ready
  std::vector<comm::Work> works_;
};

}  // namespace dtrain::train
