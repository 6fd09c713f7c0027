// Which faults does a test ask for?
#pragma once

#include <set>

#include <c10/core/Device.h>

namespace dtrain::test::fake_gpu {

class Adversaries {
 public:
  int delayed_queries = 0;  // of each event, and of each stream after its last operation

  void fail_allocation(int n) { allocations_left_ = n; }
  void lose_device(int n) { operations_left_ = n; }
  void heal();

  // Whether the allocation that is being made fails.
  bool allocation_fails() { return allocations_left_ > 0 && --allocations_left_ == 0; }
  // An operation was launched, perhaps the device's last.
  void launched(c10::DeviceIndex device);
  // Throws when the device is lost: for each call that reaches the driver.
  void check(c10::DeviceIndex device) const;

 private:
  int allocations_left_ = 0;
  int operations_left_ = 0;
  std::set<c10::DeviceIndex> lost_;
};

}  // namespace dtrain::test::fake_gpu
