// Compression on any device: comm::GradientCompressor in tensor operations, on the current stream.
//
// The same steps are exchanged uncompressed as on a CPU (warm-up, comparison), the state has the same names, and each
// rank sends the same values; NCCL may round sums differently (codecs/narrow.cpp). The host does not wait, except in
// report(), which reads the device's counts.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "compression/bucket_compressor.h"
#include "compression/compression_report.h"
#include "compression/exposed_times.h"
#include "compression/tensor_codec.h"
#include "dtrain/comm/compression.h"

namespace dtrain::train {

class TensorCompressor final : public BucketCompressor {
 public:
  TensorCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats, comm::Communicator& communicator,
                   const CompressorOptions& options);
  ~TensorCompressor() override;

  std::string_view operation() const override;
  comm::Work exchange(const comm::FusionPlan& plan, std::size_t bucket, double scale) override;
  void not_applied(std::size_t parameter) override;
  void end_step() override;
  void undo_step_where(const at::Tensor& found_inf) override;
  void forget_times() override;
  void report(const RunServices& run) override;
  void visit(StateVisitor& visitor) override;

  // Waits for the device.
  comm::CompressionStatistics statistics() const;

 private:
  class OneWork;
  bool compressing() const;
  bool compared() const;
  TensorBucket bucket_of(const comm::FusionPlan& plan, std::size_t index) const;
  double sent(double bytes, bool gathered) const;
  void advance_all();

  void keep_state();

  const comm::CompressionOptions options_;
  const bool undoes_steps_;
  TensorCodecContext context_;
  std::unique_ptr<TensorCodec> codec_;  // null: no compression
  std::deque<std::shared_ptr<OneWork>> under_way_;
  // The codec's state before the current step, in memory that is allocated once; keeps_state_: it holds that state.
  std::vector<at::Tensor> state_before_;
  bool keeps_state_ = false;
  std::int64_t steps_ = 0;
  comm::CompressionStatistics statistics_;  // without the device's counts
  ExposedTimes times_;
  CompressionReport report_;
};

}  // namespace dtrain::train
