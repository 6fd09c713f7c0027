// Which copies between pinned memory and a device may still be under way, as far as the host knows?
//
// A copy to the host lands when the host knows that it has ended; until then its destination is filled with NaN. The
// source of a copy to a device must not have changed by then.
#pragma once

#include <list>

#include <ATen/core/Tensor.h>

#include "order.h"

namespace dtrain::test::fake_gpu {

class Transfers {
 public:
  void to_host(const Access& copy, const at::Tensor& host, at::Tensor data);
  void to_device(const Access& copy, const at::Tensor& host);
  // The host knows that what the clock covers has ended.
  void complete(const Clock& known);
  // An operation on a device writes this memory of the host, in an order that has been checked.
  void overwrite(Range range);
  // An operation on a device reads this memory of the host, in an order that has been checked.
  void land(Range range);

 private:
  struct Transfer {
    Access copy;
    at::Tensor host;  // kept allocated, as by libtorch's allocator of pinned memory
    at::Tensor data;  // to the host: what will be there; to a device: what was there
    bool to_host = false;
  };

  // Those in one direction that touch this memory of the host.
  void end(Range range, bool to_host);
  static void finish(const Transfer& transfer);

  std::list<Transfer> under_way_;
};

// The bytes of a dense tensor, or from the first to the last of any other.
Range extent_of(const at::Tensor& tensor);

}  // namespace dtrain::test::fake_gpu
