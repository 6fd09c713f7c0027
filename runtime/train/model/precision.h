// libtorch's autocast, spanning a forward pass and the loss: matrix products and convolutions compute in a narrower
// type, and operators that need float32 keep it (docs/performance.md). Backward runs without autocast.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ATen_fwd.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "dtrain/config/optimizations.h"
#include "dtrain/train/loss_scaling.h"
#include "model/flat_parameters.h"
#include "state_visitor.h"

namespace dtrain::train {

// Returns the narrower type; empty: autocast stays off.
std::optional<at::ScalarType> autocast_type(config::Precision precision);

// Switches autocast on for the calling thread while this object lives; then restores the earlier state.
class Autocast {
 public:
  // Without a type nothing happens.
  Autocast(std::optional<at::ScalarType> type, c10::Device device);
  ~Autocast();
  Autocast& operator=(Autocast&&) = delete;

  // Switches autocast off while this object lives.
  class Pause {
   public:
    explicit Pause(const Autocast& autocast);
    ~Pause();
    Pause& operator=(Pause&&) = delete;

   private:
    const Autocast& autocast_;
    bool was_on_ = false;
  };

 private:
  const std::optional<at::ScalarType> type_;
  const c10::DeviceType device_;
  bool was_on_ = false;
  at::ScalarType type_before_ = at::ScalarType::Undefined;
};

// Dynamic loss scaling as in torch.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740).
// float16 has no numbers below 6e-8. So backward begins with the loss times a scale, and the update divides the
// gradients by it. If a gradient is not finite, the update is skipped and the scale falls.
//
// All values are on the device, in tensors that do not move. So no step makes the host wait, and a CUDA graph can
// contain all of it. Training thread; inverse() also the thread that runs backward. Uses the current stream.
class LossScaler {
 public:
  static constexpr double kGrowth = 2, kBackoff = 0.5;

  // ConfigError for settings that make no sense.
  LossScaler(const LossScaling& settings, c10::Device device);

  // Returns the loss times the scale, with which backward begins.
  at::Tensor scaled(const at::Tensor& loss) const { return loss * scale_; }
  // Returns `factor` / scale, one float32.
  at::Tensor inverse(double factor = 1) const;

  // An update: begin_update(), then unscale() for all gradients that this rank updates, the optimizer with found_inf(),
  // and end_update().
  void begin_update() { found_inf_.zero_(); }
  // Records in found_inf() whether a gradient is not finite, and multiplies all by `factor`, one float32. All have one
  // type.
  void unscale(at::TensorList gradients, const at::Tensor& factor);
  // Only records in found_inf(), for gradients that were multiplied before.
  void look_at(at::TensorList gradients) { unscale(gradients, one_); }
  // One float32: 1 if the update must be skipped, else 0. The caller adds what other ranks have found.
  const at::Tensor& found_inf() const { return found_inf_; }
  // Sets the new scale. Counts the update if it was skipped.
  void end_update();

  // Three float32: the scale, found_inf() of the last update, and how many updates have been skipped.
  const at::Tensor& values() const { return values_; }
  void visit(StateVisitor& visitor);

 private:
  const int growth_interval_;
  at::Tensor values_;
  at::Tensor scale_, found_inf_, skipped_;  // views of values_
  at::Tensor growth_tracker_;               // int32: updates since the last change of the scale
  at::Tensor one_;
};

// Finds the parameters that autocast always casts: only matrix products and convolutions use them, plain or transposed.
// The model may compute with their shadows instead, with the same bits and without any cast. Training thread.
//
// Autocast casts a parameter once in a forward pass, but a view of it (Linear transposes its weight) at each use: then
// the gradients of several uses are added in float32. With a shadow they would be added in its type, so a parameter
// that is cast more than once in this way gets no shadow.
class NarrowUse {
 public:
  // `parameters` outlives it.
  explicit NarrowUse(const FlatParameters& parameters);

  // During its life, watches the operators that the calling thread calls under Autocast. One at a time in a thread.
  class Watching {
   public:
    explicit Watching(NarrowUse& use);
    ~Watching();
    Watching& operator=(Watching&&) = delete;

   private:
    at::CallbackHandle handle_;
  };

  // True if watched operators have used the parameter and its shadow gives the same bits.
  bool only_narrow(std::size_t parameter) const;

 private:
  struct Uses {
    bool narrow = false;  // by operators that cast it
    bool other = false;
    int casts = 0;       // in this watching
    int most_casts = 0;  // in one watching: the parameter once, each use of a view
    bool cast_itself = false;
  };
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);
  static void see_end(const at::RecordFunction& function, at::ObserverContext* context);
  bool inside_autocast_kernel() const;
  void add(const at::Tensor& input, bool narrow);

  const bool on_host_;
  std::unordered_map<const at::TensorImpl*, std::size_t> index_;  // of parameters and their tied tensors
  std::unordered_map<const at::TensorImpl*, std::size_t> views_;  // views of them, in this watching
  std::vector<at::Tensor> kept_;  // holds these views, so that no other tensor gets the address of one
  std::vector<Uses> uses_;
};

}  // namespace dtrain::train
