// Reports loss scaling to the user: skipped updates and changes of the scale, in plan.json, events.jsonl and the log.
// Training thread.
#pragma once

#include <cstdint>
#include <span>

#include "device/steps_in_flight.h"
#include "precision/loss_scaler.h"
#include "run_services.h"

namespace dtrain::train {

class LossScalingReport {
 public:
  // `each_rank`: ranks step by themselves with scales of their own; otherwise rank 0 reports. All references outlive
  // it.
  LossScalingReport(const RunServices& run, StepsInFlight& in_flight, const LossScaler& scaler, bool each_rank);

  // Called when an update of this batch has been handed over. Its result is read when the device has done the update.
  void after_update(std::int64_t batch);
  // To be called when the scale has been replaced. Waits for the device.
  void begin_anew();
  // Rank 0: brings plan.json up to date, if there is anything new.
  void write();

 private:
  void see(std::span<const double> values, std::int64_t batch);

  const RunServices& run_;
  StepsInFlight& in_flight_;
  const LossScaler& scaler_;
  const bool reads_;
  double scale_ = 0;
  double skipped_ = 0;
  bool is_new_ = true;
};

}  // namespace dtrain::train
