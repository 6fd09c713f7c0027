#include "adversaries.h"

#include "cuda_errors.h"
#include "environment.h"
#include "report.h"

namespace dtrain::test::fake_gpu {

Adversaries::Adversaries() {
  delayed_queries = number_from("DTRAIN_FAKE_GPU_DELAYED_QUERIES", 0, 1000);
  const auto fault = fault_from_environment();
  if (!fault) return;
  const auto& [kind, at, code] = *fault;
  if (kind == Fault::Kind::kAllocation) fail_allocation(at);
  if (kind == Fault::Kind::kLost) lose_device(at, code);
  if (kind == Fault::Kind::kNcclError) fail_nccl(at);
  if (kind == Fault::Kind::kNcclHang) hang_nccl(at);
}

void Adversaries::heal() {
  delayed_queries = 0;
  allocations_left_ = operations_left_ = nccl_before_error_ = nccl_before_hang_ = 0;
  nccl_has_failed_ = false;
  lost_.clear();
}

void Adversaries::launched(c10::DeviceIndex device) {
  if (operations_left_ > 0 && --operations_left_ == 0) lost_.insert(device);
}

void Adversaries::check(c10::DeviceIndex device) const {
  if (lost_.count(device) > 0) throw_cuda_error(code_, cuda_error_text(code_));
}

bool Adversaries::nccl_hangs() {
  if (nccl_before_error_ > 0 && --nccl_before_error_ == 0) nccl_has_failed_ = true;
  return (nccl_before_hang_ > 0 && --nccl_before_hang_ == 0) || nccl_has_failed_;
}

}  // namespace dtrain::test::fake_gpu
