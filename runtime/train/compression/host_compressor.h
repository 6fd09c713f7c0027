// Compression on a CPU: comm::GradientCompressor over a model's flat memory.
#pragma once

#include <vector>

#include "compression/bucket_compressor.h"
#include "compression/compression_report.h"
#include "dtrain/comm/compression.h"

namespace dtrain::train {

class HostCompressor final : public BucketCompressor {
 public:
  HostCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats, comm::Communicator& communicator,
                 const CompressorOptions& options);

  std::string_view operation() const override;
  comm::Work exchange(const comm::FusionPlan& plan, std::size_t bucket, double scale) override;
  void not_applied(std::size_t parameter) override { compressor_.not_applied(parameter); }
  void end_step() override;
  void undo_step_where(const at::Tensor& found_inf) override;
  void forget_times() override { report_.forget(); }
  void report(const RunServices& run) override;
  void visit(StateVisitor& visitor) override;

 private:
  const std::vector<at::Tensor> flats_;
  comm::GradientCompressor compressor_;
  CompressionReport report_;
  std::vector<comm::Work> works_;  // of this step
};

}  // namespace dtrain::train
