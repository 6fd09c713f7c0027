// Replaces the all-reduce of buckets if gradients, or the values that local steps exchange, are compressed.
//
// On a CPU a comm::GradientCompressor compresses; on a device the codecs are tensor operations (tensor_compressor.h).
// Both keep the same state under the same names. Called by the training thread, exchange() also by the thread that runs
// backward. All calls are collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/codecs.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/compression.h"
#include "dtrain/comm/fusion_plan.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "state_visitor.h"

namespace dtrain::train {

class BucketCompressor {
 public:
  virtual ~BucketCompressor() = default;

  // True if this step is compressed; false in a warm-up, and in steps for comparison.
  virtual bool compressing() const = 0;
  // The name of this step's operation on a bucket, in records: "all_reduce", "all_gather".
  virtual std::string_view operation() const = 0;
  // Starts the exchange of a bucket of the plan. When its Work has been joined, the bucket holds `scale` times the
  // approximate sum over ranks. Until then the bucket must not change. The plan outlives the step.
  virtual comm::Work exchange(const comm::FusionPlan& plan, std::size_t bucket, double scale) = 0;
  // Puts the last result for this parameter, which is not used, back into the error feedback.
  virtual void not_applied(std::size_t parameter) = 0;
  // Called when all exchanges of the step have been joined.
  virtual void end_step() = 0;
  // Called after end_step(), with CompressorOptions::undoes_steps. If `found_inf`, one float32 on the device, is 1,
  // restores error feedback and other state of the codec from before the step. Error on a CPU.
  virtual void undo_step_where(const at::Tensor& found_inf) = 0;

  // Discards the times so far, which are not like later ones.
  virtual void forget_times() = 0;
  // Writes the gain or loss by compression to plan.json and the log.
  virtual void report(const RunServices& run) = 0;
  // Visits the error feedback, other state of the codec, and the number of steps.
  virtual void visit(StateVisitor& visitor) = 0;
};

struct CompressorOptions {
  comm::Compression compression;
  std::uint64_t seed = 0;
  int compared_steps = 0;          // steps that are exchanged uncompressed, to measure the gain
  std::int64_t settled_steps = 0;  // number of first steps that are not like later ones
  std::string name;                // in reports: "gradient compression", or another use
  std::string key;                 // of the experiment file
  bool undoes_steps = false;
};
// Those of optimizations.gradient_compression. `settled_steps`: the plan is final after this many steps.
CompressorOptions for_gradients(const comm::Compression& compression, std::uint64_t seed, std::int64_t settled_steps,
                                bool undoes_steps = false);

// `flats`: the exchanged values of each group, laid out like the parameters and on their device. `communicator`: the
// device's. All outlive the compressor. ConfigError if the device does not have the compression.
std::unique_ptr<BucketCompressor> make_bucket_compressor(const FlatParameters& parameters,
                                                         std::vector<at::Tensor> flats,
                                                         comm::Communicator& communicator,
                                                         const CompressorOptions& options);

// The arguments of a comm::GradientCompressor. Training thread only.
// Returns the codec, and the division of the first steps into warm-up, compared and other steps.
comm::CompressionOptions compression_options(const CompressorOptions& options);

// Returns every parameter as a matrix: the dimension with the largest stride in memory, by the rest. `flats`: the
// exchanged values of each group, laid out like the parameters.
std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters, std::span<const at::Tensor> flats);

// Returns a bucket of the plan for a comm::GradientCompressor. The plan outlives it.
comm::GradientBucket gradient_bucket(const comm::FusionPlan& plan, std::size_t bucket,
                                     std::span<const at::Tensor> flats);

// Reports the effect of compression on a run: bytes, and time gained or lost against steps that were exchanged
// uncompressed. Training thread only.
class CompressionReport {
 public:
  // `name`: "gradient compression", or another use of compression.
  CompressionReport(std::string name, std::string key) : name_(std::move(name)), key_(std::move(key)) {}

  // Adds the time that a step's exchange delayed its rank: encoding, decoding and waiting, without overlapped parts.
  void add(bool compressed, Nanoseconds exposed);
  // Discards the steps so far, which are not like later ones.
  void forget();

  // Writes the account and a sentence to plan.json and the log. Collective.
  void write(const comm::CompressionStatistics& statistics, const char* codec, const RunServices& run) const;

 private:
  // Returns the account for plan.json. Collective: times are the mean over ranks.
  Json account(const comm::CompressionStatistics& s, const char* codec, comm::Communicator& communicator) const;
  // Returns the account as a sentence. Sets `loses` if the sentence advises to switch compression off.
  std::string sentence(const Json& account, bool& loses) const;

  std::string name_;
  std::string key_;              // of the experiment file
  std::vector<double> plain_s_;  // seconds of each uncompressed step
  std::vector<double> compressed_s_;
};

}  // namespace dtrain::train
