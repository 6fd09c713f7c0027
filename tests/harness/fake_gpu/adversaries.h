// Which faults does a test ask for?
#pragma once

#include <set>

#include <c10/core/Device.h>

namespace dtrain::test::fake_gpu {

class Adversaries {
 public:
  // Those that the environment asks for.
  Adversaries();

  int delayed_queries = 0;  // of each event, and of each stream after its last operation

  void fail_allocation(int n) { allocations_left_ = n; }
  void lose_device(int n, int code) {
    operations_left_ = n;
    code_ = code;
  }
  void fail_nccl(int n) { nccl_before_error_ = n; }
  void hang_nccl(int n) { nccl_before_hang_ = n; }
  void heal();

  // Whether the allocation that is being made fails.
  bool allocation_fails() { return allocations_left_ > 0 && --allocations_left_ == 0; }
  // An operation was launched, perhaps the device's last.
  void launched(c10::DeviceIndex device);
  // Throws when the device is lost: for each call that reaches the driver.
  void check(c10::DeviceIndex device) const;

  // Whether the operation of NCCL that is being launched never ends.
  bool nccl_hangs();
  // An operation of NCCL was the first that fails: from then on all communicators have an error.
  bool nccl_has_failed() const { return nccl_has_failed_; }

 private:
  int allocations_left_ = 0;
  int operations_left_ = 0;
  int code_ = 0;  // CUDA's, of what a lost device says
  int nccl_before_error_ = 0;
  int nccl_before_hang_ = 0;
  bool nccl_has_failed_ = false;
  std::set<c10::DeviceIndex> lost_;
};

}  // namespace dtrain::test::fake_gpu
