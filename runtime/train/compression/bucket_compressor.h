// What stands in the place of an all-reduce of buckets where gradients, or what local steps exchange, are compressed.
//
// On a CPU a comm::GradientCompressor does it; on a device the codecs are tensor operations (tensor_compressor.h). Both
// keep the same state under the same names. Called by the training thread, exchange() also by the thread that runs
// backward; everything here is collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/comm/codecs.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"
#include "exchange/run_services.h"
#include "model/flat_parameters.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class BucketCompressor {
 public:
  virtual ~BucketCompressor() = default;

  // What it does to a bucket in this step, in records.
  virtual std::string_view operation() const = 0;
  // Starts the exchange of a bucket of the plan. Once its Work has been joined, the bucket holds `scale` times the
  // approximate sum over ranks. Until then it must not change. The plan outlives the step.
  virtual comm::Work exchange(const comm::FusionPlan& plan, std::size_t bucket, double scale) = 0;
  // The last result for this parameter is not used: it goes back into the error feedback.
  virtual void not_applied(std::size_t parameter) = 0;
  // All exchanges of the step have been joined.
  virtual void end_step() = 0;
  // After end_step(), with CompressorOptions::undoes_steps: where `found_inf`, one float32 on the device, is 1, error
  // feedback and what else a codec keeps are what they were before the step. Error on a CPU.
  virtual void undo_step_where(const at::Tensor& found_inf) = 0;

  // Times so far are not like those that follow.
  virtual void forget_times() = 0;
  // Writes what compression has brought to plan.json and the log.
  virtual void report(const RunServices& run) = 0;
  // Error feedback, what a codec keeps from step to step, and the number of steps.
  virtual void visit(StateVisitor& visitor) = 0;
};

struct CompressorOptions {
  comm::Compression compression;
  std::uint64_t seed = 0;
  int compared_steps = 0;  // that travel uncompressed, so that what compression gains can be said
  int settled_steps = 0;   // once they are over, steps are like those that follow
  std::string name;        // in reports: "gradient compression", or what else is compressed
  std::string key;         // of the experiment file
  bool undoes_steps = false;
};

// `flats`: of each group what is exchanged, laid out as the parameters are and on their device. `communicator`: that
// device's. All outlive it. ConfigError for a compression that the device does not have.
std::unique_ptr<BucketCompressor> make_bucket_compressor(const FlatParameters& parameters,
                                                         std::vector<at::Tensor> flats,
                                                         comm::Communicator& communicator,
                                                         const CompressorOptions& options);

}  // namespace dtrain::train
