// How gradients become an update that is the same on every rank: `replicated` all-reduces them and every rank updates
// all parameters; `sharded` leaves each rank its part of every bucket to reduce and to update.
//
// GradientExchange knows which gradients are ready; it hands full buckets to launch() in plan order, and to complete()
// in the same order once they are exchanged. The engine then calls update(). All from the training thread (autograd's
// CPU hooks run there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"

namespace dtrain::train {

// One optimizer step over the gradients that were exchanged.
struct Update {
  std::span<const std::uint8_t> used;  // of each parameter: whether any rank used it in this window
  double correction = 1;               // what gradients are multiplied by before anything else
  double max_norm = 0;                 // then their L2 norm over all parameters is at most this; 0: no clipping
};

class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  virtual std::string_view operation() const = 0;  // "all_reduce": what it does to a bucket, in records
  // The buckets from now on. Between windows, on every rank the same; the plan outlives its use. Collective.
  virtual void set_plan(const comm::FusionPlan& plan) = 0;
  // Starts the exchange of a bucket of which this rank's gradients are complete, possibly during backward.
  virtual comm::Work launch(std::size_t bucket) = 0;
  // The Work of a bucket is complete. Its gradients are the sum over ranks (and the window's batches), scaled.
  virtual void complete(std::size_t bucket) { static_cast<void>(bucket); }
  // Every bucket is complete on this rank and every rank has finished its backward. On return all parameters are up to
  // date, whoever updated them. Returns the gradients' norm before clipping, where it was asked for.
  virtual std::optional<double> update(const Update& update) = 0;
};

}  // namespace dtrain::train
