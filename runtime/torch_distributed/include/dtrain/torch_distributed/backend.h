// dtrain as a backend of torch.distributed: dist.init_process_group("dtrain") in Python, and this class in programs
// that use libtorch, as c10d::ProcessGroupGloo is used. Its interface changes with each minor version of libtorch.
//
// Tensors in host memory travel through dtrain's communicators: shared memory between ranks of one host, TCP between
// hosts. Any thread may issue operations, and wait for them; those of one group have to be issued in the same order on
// all its ranks, but for send and recv. Tensors need not be contiguous. Memory from allocateTensor() is used in place.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtrain::torch_distributed {

class Group;
struct Call;

class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // Collective over the ranks of the group, which meet in its store. CommError: a rank does not come, or cannot be
  // reached.
  explicit Backend(const c10d::DistributedBackendOptions& options);
  ~Backend() override;

  const std::string getBackendName() const override { return "dtrain"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  // Ends all operations of the group, also those of the other ranks.
  void abort() override;
  // Leaves the group. The other ranks may go on until they need this one.
  void shutdown() override;

  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

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
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  // Notes the work for endCoalescing(), where a coalesced sequence is open.
  WorkPtr issued(WorkPtr work);
  WorkPtr reduce_all(Call call, const c10d::ReduceOp& op);
  WorkPtr reduce_parts(Call call, const c10d::ReduceOp& op);
  WorkPtr reduce_each(Call call, const Tensors& parts, const c10d::ReduceOp& op);
  WorkPtr gather_all(Call call);
  WorkPtr gather_lists(Call call, const std::vector<Tensors>& outputs);
  WorkPtr exchange(Call call, const Tensors& to, const Tensors& from);
  WorkPtr receive(Call call, int from, int tag);

  std::shared_ptr<Group> group_;
  c10::intrusive_ptr<Options> options_;
  std::optional<std::vector<WorkPtr>> coalesced_;
  std::uint64_t monitored_ = 0;  // monitored barriers so far
};

// Announces to the other ranks that this process ends; with a cause it has failed. Rank 0 waits until they have left.
// Python calls it before exit. A program may do so; otherwise the end of the process without a cause is announced.
void announce_end(const std::string& cause);

// Writes the last 2000 operations of this rank to the file PREFIX and its number, whose name it returns, as PyTorch's
// NCCL groups do: `python -m torch.distributed.flight_recorder.fr_trace FOLDER` compares the files of all ranks. Empty:
// there is no process group. Failures write them, too, to TORCH_FR_DUMP_TEMP_FILE as prefix, or to the run's folder.
std::string write_flight_record(const std::string& prefix);

}  // namespace dtrain::torch_distributed
