// Reduces metrics over batches, and over ranks where they are due; in a mean each batch is weighted by its number of
// samples, or by MetricValue::mean_over(). Values on a device are reduced there, and nothing waits for them before they
// are due. Training thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/train/metrics.h"
#include "state/state_visitor.h"

namespace dtrain::train {

struct ReducedMetrics {
  std::map<std::string, double> means;  // or what Reduction says; nan: the weights are all 0
  std::int64_t samples = 0;             // of all ranks
};

// Error that names a metric whose tensor has not one element.
void require_single_values(const Metrics& metrics, const std::string& kind);

class MetricReducer {
 public:
  // `kind` ("training", "validation") keeps agreement messages of several reducers apart.
  MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator);

  // What the trial has returned for a batch.
  void add(const Metrics& metrics, std::int64_t samples);
  // What it has logged besides in a batch of so many samples. Other ranks and batches may lack these names.
  void add_logged(const Metrics& metrics, std::int64_t samples);

  // What this rank has added since the last take().
  struct Sums {
    std::map<std::string, double> sums;           // of what was on the host; or its smallest or greatest value
    std::map<std::string, double> weights;        // counts are exact up to 2^53
    std::map<std::string, Reduction> reductions;  // other than kMean
    std::set<std::string> logged;                 // of the names
    Reduction reduction_of(const std::string& name) const;
    std::int64_t samples = 0;
    // Of what was on a device: one float64 for each name, in their order. Undefined: nothing was.
    std::vector<std::string> device_names;
    at::Tensor device_sums;
    // The values of device_sums, once the host has them.
    void add_device_sums(std::span<const double> values);
  };
  Sums take();
  // The means over all ranks' sums, those of devices added. Collective; ranks that had no batch take part with nothing.
  // A metric that only some of the ranks with samples return is an Error naming it.
  ReducedMetrics reduce(Sums sums);
  // This rank's own means. Not collective.
  static ReducedMetrics local_means(const Sums& sums);
  // Of what was added since the last take(). Waits for the device. Collective.
  ReducedMetrics reduce();
  // What was added since the last take(). Waits for the device.
  void visit(StateVisitor& visitor);

 private:
  void add_values(const Metrics& metrics, std::int64_t samples);
  void agree_on_names(Sums& sums);

  std::string kind_;
  comm::ControlPlane& control_;
  comm::Communicator& communicator_;
  Sums added_;
  std::map<std::string, at::Tensor> on_device_;  // as Sums::sums
  std::map<std::string, double> restored_;       // sums that on_device_ begins with
  std::int64_t agreements_ = 0;
};

}  // namespace dtrain::train
