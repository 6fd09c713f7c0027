#include "transfers.h"

#include <cstring>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "machine.h"

namespace dtrain::test::fake_gpu {

Range extent_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * tensor.element_size()};
}

void Transfers::to_host(const Access& copy, const at::Tensor& host, at::Tensor data) {
  overwrite(extent_of(host));
  std::memset(host.data_ptr(), 0xFF, host.nbytes());
  under_way_.push_back({copy, host, std::move(data), true});
}

void Transfers::to_device(const Access& copy, const at::Tensor& host) {
  const at::AutoDispatchBelowADInplaceOrView below;
  under_way_.push_back({copy, host, host.clone(), false});
}

void Transfers::finish(const Transfer& transfer) {
  if (transfer.to_host) {
    std::memcpy(transfer.host.data_ptr(), transfer.data.data_ptr(), transfer.host.nbytes());
  } else if (std::memcmp(transfer.host.data_ptr(), transfer.data.data_ptr(), transfer.host.nbytes()) != 0) {
    machine().report.add("the host writes pinned memory before " + std::string(transfer.copy.what) + " on " +
                         machine().streams.at(transfer.copy.stream).name() + " is known to have read it");
  }
}

void Transfers::complete(const Clock& known) {
  std::list<Transfer> done;  // destroyed last: that may free memory
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    const auto transfer = it++;
    if (!covers(known, transfer->copy)) continue;
    finish(*transfer);
    done.splice(done.end(), under_way_, transfer);
  }
}

void Transfers::land(Range range) {
  end(range, true);
}

void Transfers::overwrite(Range range) {
  end(range, false);
}

void Transfers::end(Range range, bool to_host) {
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    const auto transfer = it++;
    const Range host = extent_of(transfer->host);
    if (transfer->to_host != to_host || host.end <= range.begin || range.end <= host.begin) continue;
    finish(*transfer);
    under_way_.erase(transfer);
  }
}

}  // namespace dtrain::test::fake_gpu
