// The backend "dtrain" for CPU and CUDA tensors: those in host memory go to dtrain's own Backend, those on a GPU to a
// group of PyTorch's (NCCL's), which is told nothing about it. Its Work objects are returned as they are, so streams,
// futures and time-outs are NCCL's; an Observer of the process hears of each operation once it has ended.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace dtrain::torch_distributed {

class DeviceRecords;
struct DeviceRecord;

class DeviceBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Part = c10::intrusive_ptr<c10d::Backend>;
  using OptionsPtr = c10::intrusive_ptr<Options>;
  using Milliseconds = std::chrono::milliseconds;
  // Makes the group for tensors on this kind of device. `given`: the options that the program has given; null: none.
  // `is_bound`: the program has bound its group to the device, whose communicator is made at once.
  using Make = std::function<Part(const c10d::DistributedBackendOptions& group, const OptionsPtr& given,
                                  c10::Device device, bool is_bound)>;

  struct Parts {
    Part host;                     // null: all tensors go to the device's part
    Part device;                   // null: it is made with the first operation on a device
    c10::Device kind{c10::kCUDA};  // of `device`
  };

  DeviceBackend(c10d::DistributedBackendOptions group, Parts parts, Make make, OptionsPtr given);
  ~DeviceBackend() override;

  // Null, if there is none yet.
  Part device_part() const;
  const Part& host_part() const { return host_; }

  const std::string getBackendName() const override { return "dtrain"; }
  OptionsPtr getBackendOptions() override;
  void setTimeout(Milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  void eagerConnectSingleDevice(at::Device device) override;
  void abort() override;
  void shutdown() override;
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override;

  bool supportsSplitting() const override { return true; }
  // The ranks of a process group ask once for each kind of device, and get one group for all of them.
  Part split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
             const OptionsPtr& options) override;

  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;

  bool supportsCoalescing() const override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsTimeEstimation() const override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  void startTimeEstimate() override {
    made_part().startTimeEstimate();
  }
  float endTimeEstimate() override {
    return made_part().endTimeEstimate();
  }
  void setGroupUid(const std::string& uid) override;
  void setBoundDeviceId(std::optional<at::Device> device) override;
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  bool supportsShrinking() const override;
  Part shrink(const std::vector<std::int64_t>& excluded, int flags, const OptionsPtr& options) override;
  void addEphemeralTimeout(const Milliseconds& timeout) override;
  bool supportsWindow() const override;
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
  bool supportsAbortHooks() const override;
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t id) override;
  void suspend() override {
    made_part().suspend();
  }
  void resume() override {
    made_part().resume();
  }
  std::unordered_map<std::string, std::uint64_t> getMemoryStats() override {
    return made_part().getMemoryStats();
  }
#endif

 private:
  bool is_for_host(c10::Device device) const {
    return host_ && device.is_cpu();
  }
  c10d::Backend& part_for(c10::Device device);
  c10d::Backend& made_part() const;  // throws if there is none
  void adopt(Part part, c10::Device device);
  struct Operation;
  template <class Issue>
  WorkPtr issue(const Operation& operation, const Issue& issue);
  template <class Issue>
  WorkPtr issue_on(c10::Device device, const Operation& operation, const Issue& issue);

  c10d::DistributedBackendOptions group_;
  const Part host_;
  const Make make_;
  const OptionsPtr given_;
  OptionsPtr options_;  // while the device has no part

  std::once_flag once_;
  mutable std::mutex mutex_;  // guards:
  Part device_;
  c10::Device kind_{c10::kCUDA};
  std::shared_ptr<DeviceRecords> records_;  // of its operations
  std::atomic<std::uint64_t> sequence_{0};  // collectives so far

  // An open sequence of coalesced operations.
  std::unique_ptr<DeviceRecord> coalesced_;
  bool coalesces_ = false, host_coalesces_ = false, device_coalesces_ = false, device_was_used_ = false;

  std::string last_split_;  // its group's name
  c10::weak_intrusive_ptr<c10d::Backend> last_child_;
};

}  // namespace dtrain::torch_distributed
