// Sums metrics over batches, and over ranks where they are due, each batch weighted by its number of samples.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/train/metrics.h"

namespace dtrain::train {

struct ReducedMetrics {
  std::map<std::string, double> means;  // over all samples
  std::int64_t samples = 0;             // of all ranks
};

class MetricReducer {
 public:
  // `kind` ("training", "validation") keeps agreement messages of several reducers apart.
  MetricReducer(std::string kind, comm::ControlPlane& control, comm::Communicator& communicator);

  void add(const Metrics& metrics, std::int64_t samples);  // reads the values
  // The means since the last call. Collective; ranks that had no batch take part with nothing. A metric that only
  // some of the ranks with samples return is an Error naming it.
  ReducedMetrics reduce();
  // This rank's own means since the last call, and forgets them. Not collective.
  ReducedMetrics take_local();

 private:
  void agree_on_names();

  std::string kind_;
  comm::ControlPlane& control_;
  comm::Communicator& communicator_;
  std::map<std::string, double> sums_;
  std::map<std::string, std::int64_t> weights_;
  std::int64_t samples_ = 0;
  std::int64_t agreements_ = 0;
};

}  // namespace dtrain::train
