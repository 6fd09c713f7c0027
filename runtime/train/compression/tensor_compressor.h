// Compression on any device: comm::GradientCompressor in tensor operations, on the current stream.
//
// The same steps are exchanged uncompressed as on a CPU (warm-up, comparison), the state has the same names, and each
// rank sends the same values; NCCL may round sums differently (codecs/narrow.cpp). The host does not wait, except in
// report(), which reads the device's counts.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "compression/bucket_compressor.h"
#include "compression/tensor_codec.h"
#include "dtrain/base/clock.h"
#include "dtrain/comm/compression.h"

namespace dtrain::train {

// Measures the time by which the exchanges of a step delay computing: on a device the time of the compute stream, by
// events that are read late; on a CPU the time of the calling thread.
class ExposedTimes {
 public:
  explicit ExposedTimes(c10::Device device) : device_(device) {}

  // Spans work for exchanges on the calling thread's current stream. `count`: measure the time of this step.
  class Stretch {
   public:
    Stretch(ExposedTimes& times, bool count);
    ~Stretch();
    Stretch& operator=(Stretch&&) = delete;

   private:
    ExposedTimes& times_;
    bool count_;
    Nanoseconds began_{0};
  };
  // Ends a step that was counted.
  void end_step(bool compressed);
  void forget() { steps_.clear(); }

  struct Step {
    bool compressed = false;
    Nanoseconds exposed{0};
  };
  // Returns all steps that were counted. Waits for the device.
  std::vector<Step> take();

 private:
  using Events = std::vector<std::pair<c10::Event, c10::Event>>;
  struct Counted {
    Step step;
    Events events;
  };
  c10::Event event_now() const;

  const c10::Device device_;
  SystemClock clock_;
  Events events_;                    // of this step
  std::optional<c10::Event> began_;  // of the current stretch
  Nanoseconds exposed_{0};           // of this step, on a CPU
  std::vector<Counted> steps_;
};

class TensorCompressor final : public BucketCompressor {
 public:
  TensorCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats, comm::Communicator& communicator,
                   const CompressorOptions& options);
  ~TensorCompressor() override;

  bool compressing() const override;
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
